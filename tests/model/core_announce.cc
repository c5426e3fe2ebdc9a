// Threads announce the gradients of a step that one of them begins. The step begins once, each
// thread finds what the end of the step before has left for it, and one thread puts a gradient in
// place: that of the last use, which sees what all uses wrote, unless the program says that the
// gradient is unused.
//
// with lib/core/reducer_parts.cc: recorder.write({record::EventKind::kStepBegin, totals.steps, -1, static_cast<std::uint64_t>(step->begin.share), 0, synced}); => nothing
// also kThreads = 2, kUnused = 0 => kThreads = 3, kUnused = 0
// also kThreads = 2, kUnused = 0 => kThreads = 2, kUnused = 1
// weaken lib/core/reducer_parts.cc: phase.store(Phase::kIdle, std::memory_order_release) => phase.store(Phase::kIdle, std::memory_order_relaxed)
// weaken lib/core/arrivals.cc: const Phase phase = parts_.phase.load(std::memory_order_acquire); => const Phase phase = parts_.phase.load(std::memory_order_relaxed);
// weaken lib/core/arrivals.cc: s.now.calls.fetch_add(1, std::memory_order_acq_rel) => s.now.calls.fetch_add(1, std::memory_order_acquire)
// weaken lib/core/arrivals.cc: s.now.calls.fetch_add(1, std::memory_order_acq_rel) => s.now.calls.fetch_add(1, std::memory_order_release)
// weaken lib/core/reducer_parts.cc: if (!phase.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel)) => if (phase.store(wanted), false)
#include <atomic>
#include <cstdint>

#include "checker.h"

namespace libddp {
namespace {

constexpr int kThreads = 2, kUnused = 0;

// from lib/core/step.h: Phase

enum class Role : std::uint8_t { kExpected, kIgnored };

// from lib/core/step.h: Announcement

struct ParamState {
    Announcement now;
    std::atomic<bool> waits_for_sync{false};
    std::int32_t uses = kUnused ? 1 : kThreads;
};

template <class... Parts>
int str(const Parts&...) {
    return 0;
}

// The library does more in a step, which the checker need not know.
struct Ignored {
    void check() const {}
    void run_callbacks() const {}
    bool broken() const { return false; }
    void require_asked(const auto&, std::int32_t) const {}
    void on_begin(const auto&) const {}
    void at(const auto&, const auto&) const {}
};

int begun = 0;

struct Clock {
    void first_gradient() const { ++begun; }
};

struct Begin {
    bool told = false, sync = true;
};
struct Step {
    int number = 0;
    Begin begin;
};

class ReducerParts {
public:
    Phase begin_step();
    void end_step();

    struct {
        struct {
            struct {
                bool needs_begin = false;
            } reducer;
        } options;
    } model;
    struct {
        Ignored* publisher = nullptr;
        struct {
            Ignored** begin() const { return nullptr; }
            Ignored** end() const { return nullptr; }
        } all;
    } observers;
    struct {
        std::int64_t steps = 0;
        Clock clock;
    } totals;
    Ignored gradients;
    Ignored the_group;
    Ignored* group = &the_group;
    Step the_step;
    Step* step = &the_step;
    std::atomic<Phase> phase{Phase::kDraining};
    bool sync = true;

    void refuse_in_step(int) const { ALWAYS(false); }
    void forget_step() {}
    void next_step() { ++step->number; }
};

// from lib/core/reducer_parts.cc: ReducerParts::begin_step
// from lib/core/reducer_parts.cc: ReducerParts::end_step

int gradient[kThreads];
int in_place = 0;

class Arrivals {
public:
    Arrivals(ReducerParts& parts, ParamState* states) : parts_(parts), states_(states) {}

    template <class Check, class Give>
    void announce(std::int32_t param, ParamState& s, Check check, Give give);
    void mark_unused(std::int32_t param);
    void look_and_begin() { begin(look()); }

private:
    Phase look() const;
    Phase begin(Phase phase);
    void require_filling(Phase phase) const { ALWAYS(phase == Phase::kFilling); }
    void refuse(std::int32_t, const ParamState&, std::int32_t) const {
        __VERIFIER_thread_exit(nullptr);
    }
    void require_unannounced(std::int32_t, std::int32_t) const { __VERIFIER_thread_exit(nullptr); }
    void note_announced(std::int32_t) {}
    void put_in_place(std::int32_t, ParamState&) {
        ++in_place;
        for (int thread = 0; thread < (kUnused ? 1 : kThreads); ++thread)
            ALWAYS(gradient[thread] == 1);
    }
    void put_unused(std::int32_t, ParamState&) { ++in_place; }

    ReducerParts& parts_;
    ParamState* const states_;
};

// from lib/core/arrivals.cc: Arrivals::look
// from lib/core/arrivals.cc: Arrivals::begin
// from lib/core/arrivals.cc: Arrivals::announce
// from lib/core/arrivals.cc: Arrivals::mark_unused(std::int32_t

ReducerParts parts;
ParamState state;

// The program calls once the step before has ended, which it need not know from libddp.
void wait_for_end() {
    const Phase phase = parts.phase.load(std::memory_order_relaxed);
    model::wait_until(phase == Phase::kIdle || phase == Phase::kFilling);
}

void* announce(void* argument) {
    wait_for_end();
    Arrivals step(parts, &state);
    gradient[model::number_of(argument)] = 1;
    step.announce(
        0, state, [] {}, [](Phase) { ALWAYS(parts.step->number == 1); });
    return nullptr;
}

void* mark_unused(void*) {
    wait_for_end();
    Arrivals step(parts, &state);
    step.look_and_begin();
    step.mark_unused(0);
    return nullptr;
}

void* end_step(void*) {
    parts.end_step();
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    long threads[kThreads + 1];
    threads[kThreads] = model::start(end_step, 0);
    for (int thread = 0; thread < kThreads; ++thread)
        threads[thread] = model::start(kUnused && thread == 1 ? mark_unused : announce,
                                       static_cast<std::size_t>(thread));
    for (const long thread : threads) model::join(thread);
    ALWAYS(begun == 1);
    ALWAYS(in_place == 1);
    return 0;
}
