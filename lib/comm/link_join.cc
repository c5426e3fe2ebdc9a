// How a link comes about: its ranks meet in the store, compare what they were told, and connect.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/version.h"

namespace libddp {
namespace {

// How long a failing rank waits in the store before it looks again whether the group has broken.
constexpr std::int64_t kStoreSliceMs = 200;
// How long the store has to answer a rank that wants to know who is missing.
constexpr std::int64_t kStoreAnswerMs = 1'000;
// How long ranks that chose differently keep the store for one that comes late. Some load a framework first.
constexpr std::int64_t kLatecomerMs = 10'000;
// When a rank that waits for others says whom it waits for, and how often again.
constexpr std::int64_t kFirstWordMs = 5'000;
constexpr std::int64_t kNextWordMs = 30'000;

std::string identity() {
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    return str("pid ", getpid(), " on ", host);
}

}  // namespace

// Takes this rank's place, compares options, waits until everyone is here, and connects.
void Link::join(const ddp_backend* backend) {
    interrupt::refuse_inside_check();
    const auto deadline = Deadline::after_ms(config_.timeout_ms);
    Monitor::Config config{place_.store,      place_.prefix, place_.rank, place_.world,
                           place_.store_rank, identity(),    config_.name};
    monitor_ = std::make_unique<Monitor>(std::move(config), [this](const ErrorInfo& verdict) { on_verdict(verdict); });
    try {
        monitor_->start();
        check_same_options();
        wait_for_all(deadline);
        connect(backend);
    } catch (...) {
        throw Error(join_failed(caught(), deadline));
    }
}

// What all ranks say of a failure here.
ErrorInfo Link::join_failed(ErrorInfo error, const Deadline& deadline) {
    if (error.code == DDP_ERROR_ALREADY_EXISTS) return error;
    if (is_interruption(error)) return monitor_->report_briefly(interrupted_joining());
    for (const auto& link : take_earlier())
        if (auto broken = link->verdict(); !broken.ok()) return adopt(broken, *link);
    const bool here = error.rank < 0 && !may_be_an_echo(error.code);
    if (here) {
        error.rank = place_.rank;
        error.message =
            str("rank ", place_.rank, " (", identity(), ") could not join group '", config_.name, "': ", error.message);
    }
    const ErrorInfo agreed = monitor_->resolve(error, joining());
    // Without the store, who comes late would not learn why nobody is there.
    if (place_.store_may_end && (here || agreed.code == DDP_ERROR_MISMATCH))
        monitor_->leave_last(std::clamp<std::int64_t>(deadline.remaining_ms(), 1, kLatecomerMs));
    return agreed;
}

void Link::check_same_options() {
    struct Field {
        const char* name;
        std::string value;
    };
    const Field fields[] = {
        {"libddp version", kVersion},
        {"world_size", std::to_string(place_.world)},
        {"backend", config_.backend},
        {"backend_options", config_.backend_options},
        {"flags", std::to_string(config_.flags)},
        {"round_robin", std::to_string(std::max(config_.round_robin, 1u))},
    };
    for (const auto& field : fields) {
        auto key = place_.prefix + "option/" + field.name;
        // compare_set cannot tell an empty value from an absent key, so values get a mark.
        std::string mine = "=" + field.value;
        std::string first = place_.store->compare_set(key, "", str(mine, "\n", place_.rank));
        auto end = first.rfind('\n');
        if (first.substr(0, end) == mine) continue;
        ErrorInfo error{DDP_ERROR_MISMATCH,
                        str("group '", config_.name, "': rank ", first.substr(end + 1), " has ", field.name, " '",
                            first.substr(1, end - 1), "', but rank ", place_.rank, " has '", field.value,
                            "'; all ranks must give the same"),
                        place_.rank};
        throw Error(monitor_->report(error));
    }
}

void Link::wait_for_all(const Deadline& deadline) {
    auto& store = *place_.store;
    const auto all_key = place_.prefix + "all";
    if (store.add(place_.prefix + "joined", 1) == place_.world) store.set(all_key, "1");
    log(LogLevel::kInfo, "group '", config_.name, "' at ", store.describe(), ": rank ", place_.rank, " of ",
        place_.world, " is here and waits for the others");
    auto next_word = Deadline::after_ms(kFirstWordMs);
    for (;;) {
        if (auto broken = broken_so_far(); !broken.ok()) throw Error(broken);
        try {
            store.wait({all_key}, std::min(kStoreSliceMs, std::max<std::int64_t>(1, deadline.remaining_ms())));
            return;
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        }
        if (deadline.expired()) break;
        if (!next_word.expired()) continue;
        say_who_is_missing();
        next_word = Deadline::after_ms(kNextWordMs);
    }
    if (!store.answers(kStoreAnswerMs)) fail(DDP_ERROR_TIMEOUT, "the store at ", store.describe(), " does not answer");
    const auto missing = missing_ranks(0, place_.world);
    // All came, but not all went on.
    if (missing.empty()) fail(DDP_ERROR_TIMEOUT, "not every rank was ready within ", config_.timeout_ms, " ms");
    const ErrorInfo absent{DDP_ERROR_TIMEOUT,
                           str("group '", config_.name, "' at ", store.describe(), ": of ", place_.world,
                               " ranks these did not come within ", config_.timeout_ms, " ms: ", ranks_text(missing)),
                           missing.front()};
    // Some of them may be waiting for others in the link before, where all have a monitor that answers.
    if (!earlier_.empty()) throw Error(earlier_.back()->monitor_->resolve(absent, joining()));
    throw Error(monitor_->report(absent));
}

std::vector<std::int32_t> Link::missing_ranks(std::int32_t first, std::int32_t end) const {
    std::vector<std::int32_t> missing;
    for (std::int32_t r = first; r < end; ++r)
        if (!monitor_->has_come(r)) missing.push_back(r);
    return missing;
}

// One rank speaks for all: the lowest that is here.
void Link::say_who_is_missing() const {
    for (std::int32_t r = 0; r < place_.rank; ++r)
        if (monitor_->has_come(r)) return;
    const auto missing = missing_ranks(0, place_.world);
    if (missing.empty()) return;
    log(LogLevel::kWarn, "group '", config_.name, "' at ", place_.store->describe(), ": rank ", place_.rank, " of ",
        place_.world, " still waits for ", ranks_text(missing), "; the timeout is ", config_.timeout_ms, " ms");
}

// What broke this link or, while it is joined, one that it will take turns with.
ErrorInfo Link::broken_so_far() const {
    Links earlier;
    {
        std::lock_guard lock(mutex_);
        if (!verdict_.ok()) return verdict_;
        earlier = earlier_;
    }
    for (const auto& link : earlier)
        if (auto broken = link->verdict(); !broken.ok()) return broken;
    return {};
}

Link::Links Link::take_earlier() {
    std::lock_guard lock(mutex_);
    return std::exchange(earlier_, {});
}

std::string Link::joining() const {
    return str("joining group '", config_.name, "'");
}

}  // namespace libddp
