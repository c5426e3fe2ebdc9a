// A number in shared memory that only grows, and that processes wait for.
#pragma once

#include <atomic>
#include <cstdint>

namespace libddp::shm {

// Two cache lines: processors fetch lines in pairs.
constexpr std::size_t kApart = 128;

// Wraps around; what is compared is never far apart. All zeros is its initial state.
class alignas(kApart) Counter {
public:
    // Pairs with add() and set(): then this thread sees what was written before them.
    bool reached(std::uint32_t target) const {
        return static_cast<std::int32_t>(value_.load(std::memory_order_acquire) - target) >= 0;
    }
    void add(std::uint32_t amount = 1) {
        value_.fetch_add(amount);
        wake_sleepers();
    }
    void set(std::uint32_t value) {
        value_.store(value);
        wake_sleepers();
    }
    // Makes everyone look up who sleeps here.
    void wake_all();
    // Sleeps until the counter moves or somebody wakes it, at most this long. It may already have
    // reached the target.
    void sleep(std::uint32_t target, std::int64_t milliseconds);

private:
    // Sequentially consistent together with sleep(): either this sees the sleeper, or the sleeper
    // sees the new value.
    void wake_sleepers() {
        if (sleepers_.load() != 0) wake_all();
    }

    std::atomic<std::uint32_t> value_;
    std::atomic<std::uint32_t> sleepers_;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics between processes must not hide a lock");

}  // namespace libddp::shm
