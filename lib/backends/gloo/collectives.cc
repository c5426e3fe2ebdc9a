// Broadcast and allgather.
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>

#include "backends/common/slices.h"
#include "backends/gloo/operations.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::gloo_tcp {
namespace {

// A rank forwards one piece while the next arrives.
constexpr std::size_t kBroadcastPiece = std::size_t{512} << 10;

}  // namespace

void broadcast(Mesh& mesh, const ddp_collective& c, const Deadline& deadline) {
    const backend::Tree tree(mesh.rank(), mesh.size(), c.root);
    const std::size_t bytes = c.count * dtype_size(c.dtype);
    const std::uint64_t tag = mesh.new_tag();
    const auto buffer = mesh.buffer(c.recv, bytes);
    const auto piece_at = [bytes](std::size_t begin) {
        return std::min(kBroadcastPiece, bytes - begin);
    };
    // The root may hand its data over in `send`; everyone's result is in `recv`.
    if (tree.parent < 0 && c.send != c.recv) std::memcpy(c.recv, c.send, bytes);
    if (tree.parent >= 0)
        for (std::size_t begin = 0; begin < bytes; begin += kBroadcastPiece)
            buffer->recv(tree.parent, tag, begin, piece_at(begin));
    std::size_t sends = 0;
    for (std::size_t begin = 0; begin < bytes; begin += kBroadcastPiece) {
        if (tree.parent >= 0) wait_recv(*buffer, deadline);
        for (int child : tree.children) buffer->send(child, tag, begin, piece_at(begin));
        sends += tree.children.size();
    }
    for (; sends > 0; --sends) wait_send(*buffer, deadline);
}

void allgather(Mesh& mesh, const ddp_collective& c, const Deadline& deadline) {
    const int size = mesh.size(), rank = mesh.rank();
    const std::size_t own = part_bytes(c, rank);
    const std::uint64_t tag = mesh.new_tag();
    const auto place = [&](int of) { return part_begin(c, of) * dtype_size(c.dtype); };
    std::byte* mine = part_of(c, c.recv, rank);
    if (c.send != mine) std::memcpy(mine, c.send, own);
    const auto buffer = mesh.buffer(c.recv, all_parts(c, size) * dtype_size(c.dtype));
    // Each rank starts with another peer, so that they do not all send to the same one first.
    int receives = 0, sends = 0;
    for (int distance = 1; distance < size; ++distance) {
        const int from = (rank + size - distance) % size;
        if (part_count(c, from) == 0) continue;
        buffer->recv(from, tag, place(from), part_bytes(c, from));
        ++receives;
    }
    for (int distance = 1; distance < size && own > 0; ++distance, ++sends)
        buffer->send((rank + distance) % size, tag, place(rank), own);
    for (; receives > 0; --receives) wait_recv(*buffer, deadline);
    for (; sends > 0; --sends) wait_send(*buffer, deadline);
}

}  // namespace libddp::gloo_tcp
