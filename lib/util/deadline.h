// A point in time that a wait must not pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace libddp {

// How long ranks wait for each other where nobody says otherwise.
inline constexpr std::int64_t kDefaultTimeoutMs = 300'000;
// Ten years: keeps deadlines far from the clock's overflow whatever number the caller gives.
inline constexpr std::int64_t kLongestWaitMs = std::int64_t{10} * 365 * 24 * 3600 * 1000;

class Deadline {
public:
    using Clock = std::chrono::steady_clock;

    // At most kLongestWaitMs from now.
    static Deadline after_ms(std::int64_t ms) {
        return Deadline(Clock::now() + std::chrono::milliseconds(std::min(ms, kLongestWaitMs)));
    }

    bool expired() const { return Clock::now() >= at_; }
    Clock::time_point at() const { return at_; }

    // The remaining time, never negative.
    std::int64_t remaining_ms() const {
        auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
        return left > 0 ? left : 0;
    }

private:
    explicit Deadline(Clock::time_point at) : at_(at) {}
    Clock::time_point at_;
};

}  // namespace libddp
