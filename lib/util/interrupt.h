// The program's wish to end a wait: asked for by threads of the program that wait inside a libddp
// call. Semantics: include/ddp/interrupt.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "util/deadline.h"
#include "util/mutex.h"

namespace libddp::interrupt {

using Check = std::int32_t (*)(void* user_data);

// How long a wait that may be interrupted sleeps at a time.
inline constexpr std::chrono::milliseconds kSlice{50};

namespace detail {
extern std::atomic<bool> installed;
bool possible_here();
bool asking_here();
}  // namespace detail

// Installs the check; null: none. calling_thread_only: ask on no other thread. destroy (may be
// null) gets user_data when that is no longer needed, unless this throws.
void install(Check check, void* user_data, void (*destroy)(void* user_data),
             bool calling_thread_only);

// Whether a wait of the calling thread can be interrupted. One relaxed load when no check is
// installed.
inline bool possible() {
    return detail::installed.load(std::memory_order_relaxed) && detail::possible_here();
}

// Asks the check, at most about ten times a second a thread; true: the wait must end with
// DDP_ERROR_INTERRUPTED. Called with no lock held, because the check may run code of the program's.
bool wanted();

// Whether the calling thread is inside the check.
inline bool asking() {
    return detail::installed.load(std::memory_order_relaxed) && detail::asking_here();
}
// Throws INVALID_STATE there: a thread that runs an operation must not begin another, nor wait for
// one.
void refuse_inside_check();

// This thread is one of libddp's: never asks.
void never_on_this_thread();

// A module has this code a second time, but the program knows libddp's alone.
struct Source {
    bool (*possible)();
    bool (*wanted)();
    bool (*asking)();
    void (*never_on_this_thread)();
};
// The source of this copy of the code.
const Source& own_source();
// From now on this copy asks another one, which stays loaded.
void ask(const Source& source);

// No wait of the calling thread asks while this object lives.
class Off {
public:
    Off();
    ~Off();
    Off(const Off&) = delete;
    Off& operator=(const Off&) = delete;
};

// When a wait with this deadline looks up.
inline Deadline::Clock::time_point next_look(const Deadline& deadline) {
    return possible() ? std::min(deadline.at(), Deadline::Clock::now() + kSlice) : deadline.at();
}

// Sleeps, at most until the deadline. False: the program wants the wait to end.
bool sleep(std::chrono::milliseconds duration, const Deadline& deadline);

enum class Waited { kReady, kTimeout, kInterrupted };

// condition.wait_until(lock, deadline, ready), which the program may interrupt.
template <class AnyLock, class AnyCondition, class Ready>
Waited wait(AnyLock& lock, AnyCondition& condition, const Deadline& deadline,
            Ready ready) DDP_UNCHECKED_LOCKS {
    while (!condition.wait_until(lock, next_look(deadline), ready)) {
        if (deadline.expired()) return Waited::kTimeout;
        lock.unlock();
        const bool ended = wanted();
        lock.lock();
        if (ended) return Waited::kInterrupted;
    }
    return Waited::kReady;
}

}  // namespace libddp::interrupt
