#include "core/ready_order.h"

#include <algorithm>

namespace libddp {

ReadyOrder::ReadyOrder(std::vector<std::int32_t> initial) : agreed_(std::move(initial)), heard_(agreed_.size()) {}

void ReadyOrder::start() {
    count_.store(0, std::memory_order_relaxed);
    recording_ = true;
}

void ReadyOrder::finish() {
    recording_ = false;
    own_.assign(heard_.begin(), heard_.begin() + count_.load(std::memory_order_relaxed));
    std::vector<std::int32_t> sorted = own_;
    std::sort(sorted.begin(), sorted.end());
    for (auto id : agreed_)
        if (!std::binary_search(sorted.begin(), sorted.end(), id)) own_.push_back(id);
}

void ReadyOrder::agree(Group& group, std::int32_t root, bool consensus) {
    // A rank that has recorded nothing (it joined a running job) says what it knows.
    const OpTag tag = OpTag::of(Purpose::kReadyOrder);
    std::vector<std::int32_t> order = own_.empty() ? agreed_ : own_;
    if (!consensus) {
        group.run({DDP_COLLECTIVE_BROADCAST, nullptr, order.data(), order.size(), DDP_I32, DDP_SUM, root}, tag);
        agreed_ = std::move(order);
        return;
    }
    std::int32_t largest = -1;
    for (auto id : order) largest = std::max(largest, id);
    std::vector<std::int64_t> places(static_cast<std::size_t>(largest + 1));
    for (std::size_t place = 0; place < order.size(); ++place)
        places[static_cast<std::size_t>(order[place])] = static_cast<std::int64_t>(place);
    group.run({DDP_COLLECTIVE_ALLREDUCE, nullptr, places.data(), places.size(), DDP_I64, DDP_SUM}, tag);
    std::sort(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&places](std::int32_t a, std::int32_t b) {
        return places[static_cast<std::size_t>(a)] < places[static_cast<std::size_t>(b)];
    });
    agreed_ = std::move(order);
}

}  // namespace libddp
