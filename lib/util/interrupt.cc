#include "util/interrupt.h"

#include <memory>
#include <thread>
#include <utility>

#include "util/error.h"
#include "util/mutex.h"

namespace libddp::interrupt {
namespace {

using Clock = Deadline::Clock;

// A little less than two slices, so that every second look of a wait asks.
constexpr std::chrono::milliseconds kBetween{80};
// A thread that has not waited for so long begins a new wait, which asks only when it has lasted a
// while.
constexpr std::chrono::milliseconds kNewWait{1'000};

struct Installed {
    Check check = nullptr;
    void* user_data = nullptr;
    void (*destroy)(void*) = nullptr;
    std::uint64_t generation = 0;
    bool one_thread = false;

    Installed() = default;
    ~Installed() {
        if (destroy) destroy(user_data);
    }
    Installed(const Installed&) = delete;
    Installed& operator=(const Installed&) = delete;
};

struct Process {
    Mutex mutex;
    std::shared_ptr<const Installed> installed DDP_GUARDED_BY(mutex);
    // For a look without the lock. Only `installed` counts.
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

std::atomic<const Source*> source{nullptr};  // null: this copy of the code has the check

const Source* other() {
    return source.load(std::memory_order_acquire);
}

}  // namespace

const Source& own_source() {
    static constexpr Source own{possible, wanted, asking, never_on_this_thread};
    return own;
}

void ask(const Source& of) {
    source.store(&of, std::memory_order_release);
    detail::installed = true;
}

std::atomic<bool> detail::installed{false};

bool detail::possible_here() {
    if (here.off > 0) return false;
    if (const Source* o = other()) return o->possible();
    const Process& p = process();
    return !p.one_thread.load(std::memory_order_relaxed) ||
           here.owns == p.generation.load(std::memory_order_relaxed);
}

void install(Check check, void* user_data, void (*destroy)(void*), bool calling_thread_only) {
    const auto made = std::make_shared<Installed>();
    std::shared_ptr<const Installed> before;  // both are let go after the lock is gone: user code
    Process& p = process();
    const Lock lock(p.mutex);
    // Nothing fails from here on.
    made->check = check;
    made->user_data = user_data;
    made->destroy = destroy;
    made->generation = here.owns = p.generation.fetch_add(1) + 1;
    made->one_thread = calling_thread_only;
    before = std::exchange(p.installed, check ? made : nullptr);
    p.one_thread = calling_thread_only;
    detail::installed = check != nullptr;
}

bool wanted() {
    if (!possible()) return false;
    if (const Source* o = other()) return o->wanted();
    const auto now = Clock::now();
    if (now - std::exchange(here.last_look, now) > kNewWait) here.last_asked = now;
    if (now - here.last_asked < kBetween) return false;
    std::shared_ptr<const Installed> current;
    {
        const Lock lock(process().mutex);
        current = process().installed;
    }
    // Another thread may have installed one of its own meanwhile.
    if (!current || (current->one_thread && here.owns != current->generation)) return false;
    const Off off;
    here.asking = true;
    const bool yes = current->check(current->user_data) != 0;
    here.asking = false;
    here.last_asked = Clock::now();
    return yes;
}

bool sleep(std::chrono::milliseconds duration, const Deadline& deadline) {
    const auto end = Deadline::after_ms(std::min(duration.count(), deadline.remaining_ms()));
    while (!end.expired()) {
        if (wanted()) return false;
        std::this_thread::sleep_until(next_look(end));
    }
    return true;
}

bool detail::asking_here() {
    const Source* o = other();
    return o ? o->asking() : here.asking;
}

void refuse_inside_check() {
    if (asking())
        fail(
            DDP_ERROR_INVALID_STATE,
            "the interrupt check, or a signal handler that it runs, must not wait for other ranks");
}

void never_on_this_thread() {
    ++here.off;
    if (const Source* o = other()) o->never_on_this_thread();
}

Off::Off() {
    ++here.off;
}

Off::~Off() {
    --here.off;
}

}  // namespace libddp::interrupt
