// How many operations a group, and those that were split from it, were given, and how many of these
// have ended.
#pragma once

#include <atomic>
#include <cstdint>

namespace libddp {

class OperationCounts {
public:
    void give() { given_.fetch_add(1, std::memory_order_acq_rel); }
    // Before ended_, so that a thread that sees the end sees how it was.
    void end(bool well) {
        (well ? succeeded_ : failed_).fetch_add(1, std::memory_order_acq_rel);
        ended_.fetch_add(1, std::memory_order_acq_rel);
    }

    std::int64_t given() const { return given_.load(std::memory_order_acquire); }
    // The same, if all have ended; else -1.
    std::int64_t given_if_all_ended() const {
        const std::int64_t ended = ended_.load(std::memory_order_acquire);
        return ended == given() ? ended : -1;
    }
    // How many have ended without an error.
    std::int64_t successes() const { return succeeded_.load(std::memory_order_acquire); }
    // How many will have when all have ended. Fewer, where operations begin and fail meanwhile.
    std::int64_t successes_expected() const {
        const std::int64_t count = given();
        return count - failed_.load(std::memory_order_acquire);
    }

private:
    std::atomic<std::int64_t> given_{0}, ended_{0}, succeeded_{0}, failed_{0};
};

}  // namespace libddp
