// Waiting for another processor without going to sleep.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

namespace libddp {

inline void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The processor that the calling thread runs on; negative where the system does not say. One load
// on most systems.
inline int this_processor() {
    return sched_getcpu();
}

// The processor on which a thread was last seen. Relaxed: a guess.
class LastSeen {
public:
    void note() { processor_.store(this_processor(), std::memory_order_relaxed); }
    // Whether the calling thread runs there now.
    bool is_here() const {
        const int here = this_processor();
        return here >= 0 && processor_.load(std::memory_order_relaxed) == here;
    }

private:
    std::atomic<int> processor_{-1};
};

// Looks again and again whether done(), and returns true once it is. Returns false after `at_most`,
// and as soon as in_the_way() says that the thread to wait for may need this very processor. The
// caller then sleeps until that thread wakes it. Yielding instead would give away a whole time
// slice where another program wants the processor, too.
template <class Done, class InTheWay>
bool spin_until(std::chrono::nanoseconds at_most, Done done, InTheWay in_the_way) {
    using Clock = std::chrono::steady_clock;
    constexpr int kLooks = 64;  // between two questions
    // not known before the first look at the clock, which ranks in step do without
    Clock::time_point end{};
    for (;;) {
        for (int i = 0; i < kLooks; ++i) {
            if (done()) return true;
            pause_processor();
        }
        if (in_the_way()) return false;
        const auto now = Clock::now();
        if (end == Clock::time_point{}) end = now + at_most;
        if (now >= end) return false;
    }
}

}  // namespace libddp
