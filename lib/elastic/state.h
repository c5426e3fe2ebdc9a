// The memory of a job's state: what one rank gives to others, and what a step may have to be undone
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace libddp {

// State travels between ranks in pieces of this size.
constexpr std::size_t kStatePiece = std::size_t{16} << 20;

struct StateBlock {
    std::string name;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
};

using StateBlocks = std::vector<StateBlock>;

std::size_t bytes_of(const StateBlocks& blocks);
// `bytes` of all blocks, one after another, from `begin` on.
void copy_piece(const StateBlocks& blocks, std::size_t begin, std::size_t bytes, std::byte* to);
// The blocks get the bytes that follow each other in `from`.
void fill_blocks(const StateBlocks& blocks, const std::byte* from);
std::uint64_t hash_of(const StateBlocks& blocks);

// The contents of blocks at one moment.
class StateCopy {
public:
    void take(const StateBlocks& blocks);
    // Gives the memory back.
    void forget() { *this = {}; }
    const std::byte* data() const { return memory_.get(); }

private:
    std::size_t bytes_ = 0;
    std::unique_ptr<std::byte[]> memory_;
};

}  // namespace libddp
