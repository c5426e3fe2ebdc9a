// The order in which gradients become ready: recorded now and then, agreed between ranks, and followed by the next
// plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/group.h"

namespace libddp {

class ReadyOrder {
public:
    // Until something is recorded the order is `initial`.
    explicit ReadyOrder(std::vector<std::int32_t> initial);

    void start();
    bool recording() const { return recording_; }
    // One call a parameter; any thread.
    void note(std::int32_t param) { heard_[count_.fetch_add(1, std::memory_order_relaxed)] = param; }
    // Ends recording. Parameters that were not heard of follow in the order so far.
    void finish();

    // This rank's own, as last recorded. Empty before.
    const std::vector<std::int32_t>& own() const { return own_; }
    // What all ranks last agreed on.
    const std::vector<std::int32_t>& agreed() const { return agreed_; }
    // Collective: that of rank `root`, or (consensus) by the mean place that a parameter has on the ranks (section
    // 6.2.1 of the paper asks for such a consensus).
    void agree(Group& group, std::int32_t root, bool consensus);

private:
    std::vector<std::int32_t> agreed_, own_, heard_;
    std::atomic<std::uint32_t> count_{0};
    bool recording_ = false;
};

}  // namespace libddp
