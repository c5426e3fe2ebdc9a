#include "core/block_update.h"

#include <algorithm>
#include <cstring>

namespace libddp {

// A backend calls it, through C.
void BlockUpdate::take(std::size_t offset, std::size_t bytes) {
    const Lock lock(mutex_);
    if (ended_ || error_) return;
    taken_ = true;
    begun_ = true;
    const std::size_t end = offset + bytes;
    const auto end_of = [](const Part& part) {
        return part.offset + static_cast<std::size_t>(part.piece.count) * part.item;
    };
    auto part = std::partition_point(parts_.begin(), parts_.end(),
                                     [&](const Part& p) { return end_of(p) <= offset; });
    try {
        for (; part != parts_.end() && part->offset < end; ++part) {
            const std::size_t from = std::max(part->offset, offset) - part->offset;
            const std::size_t size = std::min(end_of(*part), end) - part->offset - from;
            if (part->now->now.role == Role::kExpected)
                update_(part->piece, static_cast<std::int64_t>(from / part->item),
                        static_cast<std::int64_t>(size / part->item));
            std::memcpy(static_cast<std::byte*>(part->piece.gradient) + from,
                        static_cast<const std::byte*>(part->piece.value) + from, size);
        }
    } catch (...) {
        error_ = std::current_exception();
    }
}

bool BlockUpdate::finish() {
    const Lock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    return std::exchange(taken_, false);
}

void BlockUpdate::end() {
    const Lock lock(mutex_);
    ended_ = true;
}

}  // namespace libddp
