#include "backends/shm/arena.h"

#include "util/error.h"

namespace libddp::shm {

void* Arena::allocate(std::size_t bytes) {
    const std::size_t size = whole_pages(bytes > 0 ? bytes : 1);
    const std::lock_guard lock(mutex_);
    if (size > end_ - next_)
        fail(DDP_ERROR_OUT_OF_MEMORY, "the range of shared memory of one rank is used up; create the group anew");
    segment_.reserve(next_, size);
    Block block{next_, segment_.map(next_, size)};
    next_ += size;
    std::byte* memory = block.mapping.data();
    own_.emplace(memory, std::move(block));
    return memory;
}

void Arena::deallocate(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = own_.find(static_cast<std::byte*>(memory));
    if (found == own_.end()) fail(DDP_ERROR_INVALID_ARGUMENT, "this memory was not allocated from this group");
    const Block& block = found->second;
    const std::uint64_t count = freed_.count.load(std::memory_order_relaxed);
    freed_.blocks[count % FreedBlocks::kRemembered].store(block.offset, std::memory_order_relaxed);
    freed_.count.store(count + 1, std::memory_order_release);
    segment_.release(block.offset, block.mapping.bytes());
    own_.erase(found);
}

Location Arena::locate(const void* memory, std::size_t bytes) const {
    const auto* begin = static_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    auto after = own_.upper_bound(begin);
    if (after == own_.begin()) return {};
    const auto& [start, block] = *--after;
    const auto within = static_cast<std::size_t>(begin - start);
    if (within > block.mapping.bytes() || bytes > block.mapping.bytes() - within) return {};
    return {block.offset, block.mapping.bytes(), within};
}

std::byte* Arena::reach(int rank, const Location& location, std::size_t bytes, std::size_t alignment) {
    auto& blocks = others_[static_cast<std::size_t>(rank)].blocks;
    auto found = blocks.find(location.block);
    if (found == blocks.end())
        found = blocks.emplace(location.block, segment_.map(location.block, location.bytes)).first;
    const Mapping& block = found->second;
    if (location.within % alignment != 0) return nullptr;
    if (location.within > block.bytes() || bytes > block.bytes() - location.within) return nullptr;
    return block.data() + location.within;
}

void Arena::follow(int rank, const FreedBlocks& freed) {
    Other& other = others_[static_cast<std::size_t>(rank)];
    const std::uint64_t count = freed.count.load(std::memory_order_acquire);
    if (count == other.freed) return;
    if (count - other.freed > FreedBlocks::kRemembered) {
        other.blocks.clear();  // too many to tell which: what is still needed is mapped again
    } else {
        for (; other.freed < count; ++other.freed)
            other.blocks.erase(freed.blocks[other.freed % FreedBlocks::kRemembered].load(std::memory_order_relaxed));
    }
    other.freed = count;
}

}  // namespace libddp::shm
