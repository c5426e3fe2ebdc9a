#include "comm/pieces.h"

#include <cstring>

#include "kernels/on_device.h"

namespace libddp {

std::size_t total_bytes(const std::vector<Piece>& pieces) {
    std::size_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    return bytes;
}

void gather_pieces(std::byte* target, const std::vector<Piece>& pieces, const StreamPtr& stream) {
    std::vector<ddp_segment> segments;
    for (const Piece& piece : pieces) {
        if (stream)
            segments.push_back({target, piece.data, piece.bytes});
        else
            std::memcpy(target, piece.data, piece.bytes);
        target += piece.bytes;
    }
    if (stream) on_device::transfer(*stream, segments, DDP_U8, DDP_U8, 1);
}

void scatter_pieces(const std::byte* source, const std::vector<Piece>& pieces,
                    const StreamPtr& stream) {
    std::vector<ddp_segment> segments;
    for (const Piece& piece : pieces) {
        if (stream)
            segments.push_back({piece.data, source, piece.bytes});
        else
            std::memcpy(piece.data, source, piece.bytes);
        source += piece.bytes;
    }
    if (stream) on_device::transfer(*stream, segments, DDP_U8, DDP_U8, 1);
}

ddp_device device_of_stream(const StreamPtr& stream) {
    return stream ? stream->device() : ddp_device{DDP_DEVICE_CPU, 0};
}

}  // namespace libddp
