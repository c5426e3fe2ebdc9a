// How many operations a group, and those that were split from it, were given, and how many of these
// have ended.
#pragma once

#include <atomic>
#include <cstdint>

namespace libddp {

class OperationCounts {
public:
    void give() { given_.fetch_add(1, std::memory_order_acq_rel); }
    void end(bool well) {
        if (!well) failed_.fetch_add(1, std::memory_order_acq_rel);
        ended_.fetch_add(1, std::memory_order_acq_rel);
    }

    std::int64_t given() const { return given_.load(std::memory_order_acquire); }
    // The same, if all have ended; else -1.
    std::int64_t given_if_all_ended() const {
        const std::int64_t ended = ended_.load(std::memory_order_acquire);
        return ended == given() ? ended : -1;
    }
    // How many have ended without an error, and how many will have when all have ended.
    std::int64_t successes() const {
        return ended_.load(std::memory_order_acquire) - failed_.load(std::memory_order_acquire);
    }
    std::int64_t successes_expected() const {
        return given() - failed_.load(std::memory_order_acquire);
    }

private:
    std::atomic<std::int64_t> given_{0}, ended_{0}, failed_{0};
};

}  // namespace libddp
