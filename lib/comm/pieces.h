// Pieces of memory that travel together: one after another in one place, and back.
#pragma once

#include <cstddef>
#include <vector>

#include "ddp/types.h"
#include "device/stream.h"

namespace libddp {

struct Piece {
    std::byte* data;
    std::size_t bytes;
};

std::size_t total_bytes(const std::vector<Piece>& pieces);

// stream: null for memory of the CPU; otherwise in its order.
void gather_pieces(std::byte* target, const std::vector<Piece>& pieces, const StreamPtr& stream);
void scatter_pieces(const std::byte* source, const std::vector<Piece>& pieces,
                    const StreamPtr& stream);

// Where the memory is that is used in the order of this stream; null: on the CPU.
ddp_device device_of_stream(const StreamPtr& stream);

}  // namespace libddp
