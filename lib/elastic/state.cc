#include "elastic/state.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "util/hash.h"

namespace libddp {

std::size_t bytes_of(const StateBlocks& blocks) {
    std::size_t bytes = 0;
    for (const StateBlock& block : blocks) bytes += block.bytes;
    return bytes;
}

void copy_piece(const StateBlocks& blocks, std::size_t begin, std::size_t bytes, std::byte* to) {
    const std::size_t end = begin + bytes;
    std::size_t at = 0;
    for (const StateBlock& block : blocks) {
        const std::size_t first = std::max(begin, at), last = std::min(end, at + block.bytes);
        if (first < last) to = std::copy_n(block.memory + (first - at), last - first, to);
        at += block.bytes;
    }
}

void fill_blocks(const StateBlocks& blocks, const std::byte* from) {
    for (const StateBlock& block : blocks) {
        if (block.bytes > 0) std::memcpy(block.memory, from, block.bytes);
        from += block.bytes;
    }
}

std::uint64_t hash_of(const StateBlocks& blocks) {
    Hash hash;
    for (const StateBlock& block : blocks)
        hash.add_words({reinterpret_cast<const char*>(block.memory), block.bytes});
    return hash.value();
}

void StateCopy::take(const StateBlocks& blocks) {
    const std::size_t bytes = bytes_of(blocks);
    if (bytes != bytes_) {
        forget();
        memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
        bytes_ = bytes;
    }
    copy_piece(blocks, 0, bytes, memory_.get());
}

}  // namespace libddp
