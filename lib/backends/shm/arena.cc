#include "backends/shm/arena.h"

#include <algorithm>
#include <iterator>

#include "util/error.h"

namespace libddp::shm {

void* Arena::allocate(std::size_t bytes) {
    const std::size_t size = whole_pages(bytes > 0 ? bytes : 1);
    const Lock lock(mutex_);
    const std::uint64_t offset = take_place(size);
    try {
        segment_.reserve(offset, size);
        Block block{offset, segment_.map(offset, size)};
        std::byte* memory = block.mapping.data();
        own_at_[offset] = &own_.emplace(memory, std::move(block)).first->second.mapping;
        return memory;
    } catch (...) {
        if (segment_.release(offset, size)) give_back_place(offset, size);
        throw;
    }
}

// The first that is large enough, so that the file grows as little as it can.
std::uint64_t Arena::take_place(std::size_t size) {
    const auto found = std::find_if(free_.begin(), free_.end(), [size](const auto& place) {
        return place.second - place.first >= size;
    });
    if (found == free_.end())
        fail(DDP_ERROR_OUT_OF_MEMORY,
             "the range of shared memory of one rank is used up; create the group anew");
    const auto [begin, end] = *found;
    if (end - begin > size) free_.emplace(begin + size, end);
    free_.erase(begin);
    return begin;
}

void Arena::give_back_place(std::uint64_t offset, std::size_t size) {
    const auto place = free_.emplace(offset, offset + size).first;
    if (const auto after = std::next(place);
        after != free_.end() && after->first == place->second) {
        place->second = after->second;
        free_.erase(after);
    }
    if (place == free_.begin()) return;
    if (const auto before = std::prev(place); before->second == place->first) {
        before->second = place->second;
        free_.erase(place);
    }
}

void Arena::deallocate(void* memory) {
    const Lock lock(mutex_);
    const auto found = own_.find(static_cast<std::byte*>(memory));
    if (found == own_.end())
        fail(DDP_ERROR_INVALID_ARGUMENT, "this memory was not allocated from this group");
    const Block& block = found->second;
    freed_.add(block.offset);
    const bool zeroed = segment_.release(block.offset, block.mapping.bytes());
    if (zeroed && reuse_.load(std::memory_order_relaxed))
        give_back_place(block.offset, block.mapping.bytes());
    own_at_.erase(block.offset);
    own_.erase(found);
}

Location Arena::locate(const void* memory, std::size_t bytes) const {
    const auto* begin = static_cast<const std::byte*>(memory);
    const Lock lock(mutex_);
    auto after = own_.upper_bound(begin);
    if (after == own_.begin()) return {};
    const auto& [start, block] = *--after;
    const auto within = static_cast<std::size_t>(begin - start);
    if (within > block.mapping.bytes() || bytes > block.mapping.bytes() - within) return {};
    return {block.offset, block.mapping.bytes(), within};
}

std::byte* Arena::reach(int rank, const Location& location, std::size_t bytes,
                        std::size_t alignment) {
    const Mapping* const block = mapping_of(rank, location);
    if (!block || location.within % alignment != 0) return nullptr;
    if (location.within > block->bytes() || bytes > block->bytes() - location.within)
        return nullptr;
    return block->data() + location.within;
}

const Mapping* Arena::mapping_of(int rank, const Location& location) {
    {
        const Lock lock(mutex_);
        const auto own = own_at_.find(location.block);
        if (own != own_at_.end()) return own->second;
    }
    Other& other = others_[static_cast<std::size_t>(rank)];
    Reached& block = other.blocks[location.block];
    if (block.mapping.bytes() != location.bytes) {
        // A new block in the place of a freed one, but not of one that may be in use.
        if (block.round == other.round) return nullptr;
        block.mapping = segment_.map(location.block, location.bytes);
    }
    block.round = other.round;
    return &block.mapping;
}

void Arena::follow(int rank, const FreedBlocks& freed) {
    Other& other = others_[static_cast<std::size_t>(rank)];
    ++other.round;
    const auto unmap = [&other](std::uint64_t block) { other.blocks.erase(block); };
    // Blocks that are still needed are mapped again.
    if (!freed.follow(other.freed, unmap)) other.blocks.clear();
}

}  // namespace libddp::shm
