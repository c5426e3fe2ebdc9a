#include "util/interrupt.h"

#include <utility>

#include "util/error.h"

namespace libddp::interrupt {
namespace {

using Clock = Deadline::Clock;

// A little less than two slices, so that every second look of a wait asks.
constexpr std::chrono::milliseconds kBetween{80};
// A thread that has not waited for so long begins a new wait, which asks only when it has lasted a while.
constexpr std::chrono::milliseconds kNewWait{1'000};

struct Installed {
    Check check;
    std::shared_ptr<void> user_data;
};

struct Process {
    std::mutex mutex;
    std::shared_ptr<const Installed> installed;
    std::atomic<std::uint64_t> generation{0};  // grows with every check
    std::atomic<bool> one_thread{false};
};

Process& process() {
    // Never destroyed: threads may still wait while the process exits.
    static Process& instance = *new Process;
    return instance;
}

struct Thread {
    int off = 0;
    bool asking = false;
    std::uint64_t owns = 0;  // the generation of the check that this thread has installed
    Clock::time_point last_look{}, last_asked{};
};
thread_local Thread here;

}  // namespace

std::atomic<bool> detail::installed{false};

bool detail::possible_here() {
    if (here.off > 0) return false;
    const Process& p = process();
    return !p.one_thread.load(std::memory_order_relaxed) || here.owns == p.generation.load(std::memory_order_relaxed);
}

void install(Check check, std::shared_ptr<void> user_data, bool calling_thread_only) {
    std::shared_ptr<const Installed> made, before;  // destroyed after the lock is gone: user code
    if (check) made = std::make_shared<const Installed>(Installed{check, std::move(user_data)});
    Process& p = process();
    const std::lock_guard lock(p.mutex);
    before = std::exchange(p.installed, std::move(made));
    here.owns = p.generation.fetch_add(1) + 1;
    p.one_thread = calling_thread_only;
    detail::installed = check != nullptr;
}

bool wanted() {
    if (!possible()) return false;
    const auto now = Clock::now();
    if (now - std::exchange(here.last_look, now) > kNewWait) here.last_asked = now;
    if (now - here.last_asked < kBetween) return false;
    std::shared_ptr<const Installed> current;
    {
        const std::lock_guard lock(process().mutex);
        current = process().installed;
    }
    if (!current) return false;
    const Off off;
    here.asking = true;
    const bool yes = current->check(current->user_data.get()) != 0;
    here.asking = false;
    here.last_asked = Clock::now();
    return yes;
}

bool detail::asking_here() {
    return here.asking;
}

void refuse_inside_check() {
    if (asking())
        fail(DDP_ERROR_INVALID_STATE,
             "the interrupt check, or a signal handler that it runs, must not wait for other ranks");
}

void never_on_this_thread() {
    ++here.off;
}

Off::Off() {
    ++here.off;
}

Off::~Off() {
    --here.off;
}

}  // namespace libddp::interrupt
