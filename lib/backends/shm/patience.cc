#include "backends/shm/patience.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "util/deadline.h"
#include "util/interrupt.h"
#include "util/processors.h"
#include "util/spin.h"

namespace libddp::shm {
namespace {

// How long a wait spins before it sleeps. Waking a sleeper takes longer than this.
constexpr std::int64_t kSpinNs = 50'000;
// Where there are more ranks than processors, the others are given theirs this often before
// sleeping.
constexpr int kYields = 4;
// How often a sleeper looks up although nobody woke it.
constexpr std::int64_t kGlanceMs = 50;

}  // namespace

Patience::Patience(const TeamOptions& options, const Control& control,
                   const backend::Failure& failure)
    : options_(options),
      control_(control),
      failure_(failure),
      crowded_(options.size > usable_processors()) {}

bool Patience::spin(const Counter& counter, std::uint32_t target, std::int64_t nanoseconds) {
    const auto reached = [&] { return counter.reached(target); };
    const auto in_the_way = [this] {
        take_seat(this_processor());
        return control_.shared().seats.shared(seat_);
    };
    return spin_until(std::chrono::nanoseconds(crowded_ ? 0 : nanoseconds), reached, in_the_way);
}

void Patience::take_seat(int processor) {
    if (processor == seat_) return;
    control_.shared().seats.move(seat_, processor);
    seat_ = processor;
}

void Patience::wait(Counter& counter, std::uint32_t target, std::int64_t timeout_ms) {
    if (counter.reached(target)) return;
    if (!crowded_) {
        if (spin(counter, target, kSpinNs)) return;
    } else {
        for (int i = 0; i < kYields; ++i) {
            sched_yield();
            if (counter.reached(target)) return;
        }
    }
    sleep(counter, target, timeout_ms);
}

void Patience::sleep(Counter& counter, std::uint32_t target, std::int64_t timeout_ms) const {
    const Deadline deadline = Deadline::after_ms(timeout_ms);
    while (!counter.reached(target)) {
        failure_.check();
        check_others(counter, target);
        if (deadline.expired()) throw TeamError(describe_timeout());
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
        counter.sleep(target,
                      std::min(kGlanceMs, std::max<std::int64_t>(1, deadline.remaining_ms())));
    }
}

// A rank that left did so after its last collective: it is missed only if the counter still is not
// where it must be.
void Patience::check_others(const Counter& counter, std::uint32_t target) const {
    if (control_.shared().broken.load() && !counter.reached(target))
        fail(DDP_ERROR_RANK_FAILED, kGaveUp);
    for (int other = 0; other < options_.size; ++other) {
        if (!control_.state(other).left.load() || counter.reached(target)) continue;
        throw TeamError(ErrorInfo{DDP_ERROR_RANK_FAILED,
                                  str("rank ", options_.name_of(other), " left the group"), other});
    }
}

ErrorInfo Patience::describe_timeout() const {
    const std::uint32_t here = control_.state(options_.rank).posted.load();
    ErrorInfo info{DDP_ERROR_TIMEOUT, ""};
    for (int other = 0; other < options_.size; ++other) {
        if (control_.state(other).posted.load() == here) continue;
        if (info.rank < 0) info.rank = other;
        info.message += str(info.message.empty() ? "" : ", ", options_.name_of(other));
    }
    info.message =
        info.message.empty()
            ? "the collective did not finish before its timeout"
            : "these ranks did not come to the collective before its timeout: " + info.message;
    return info;
}

}  // namespace libddp::shm
