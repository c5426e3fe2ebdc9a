#include "core/delivery.h"

#include <algorithm>
#include <cstring>

namespace libddp {

void Delivery::take(const void* data, std::size_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    if (ended_) return;
    const std::size_t end = offset + bytes;
    auto target = std::partition_point(targets_.begin(), targets_.end(), [offset](const Target& p) {
        return p.offset + p.bytes <= offset;
    });
    for (; target != targets_.end() && target->offset < end; ++target) {
        const std::size_t first = std::max(target->offset, offset);
        std::memcpy(target->value + (first - target->offset),
                    static_cast<const std::byte*>(data) + (first - offset),
                    std::min(target->offset + target->bytes, end) - first);
    }
}

void Delivery::end() {
    const Lock lock(mutex_);
    ended_ = true;
}

}  // namespace libddp
