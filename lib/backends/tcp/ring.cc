// Collectives in which each rank exchanges data with its neighbours, or in log2(world) rounds, for
// worlds in which not every rank is connected with every other.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/common/direct.h"
#include "backends/common/slices.h"
#include "backends/tcp/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::tcp {
namespace {

// Up to this many bytes from all ranks together, everyone gets everything.
constexpr std::size_t kGathered = std::size_t{256} << 10;

// The messages to the right neighbour and from the left one, in the order in which both ends know
// them.
class Neighbours {
public:
    explicit Neighbours(Mesh& mesh) : mesh_(mesh) {}
    void send(const void* data, std::size_t bytes) {
        mesh_.send(mesh_.after(1), MessageType::kData, data, bytes, sent_++ % mesh_.lanes());
    }
    void expect(void* into, std::size_t bytes, int* missing) {
        mesh_.expect(mesh_.before(1), MessageType::kData, into, bytes, missing,
                     expected_++ % mesh_.lanes());
    }

private:
    Mesh& mesh_;
    std::size_t sent_ = 0, expected_ = 0;
};

struct Chunk {
    int slice;
    std::size_t k;
};

// The chunks that a rank receives while slices go round for size - 1 steps: first those of slice
// `first`, then of the one before.
std::vector<Chunk> chunks_from(const backend::Cut& cut, int first, int size) {
    std::vector<Chunk> chunks;
    for (int step = 0; step < size - 1; ++step) {
        const int slice = (first - step + 2 * size) % size;
        for (std::size_t k = 0; k < cut.chunks(slice); ++k) chunks.push_back({slice, k});
    }
    return chunks;
}

// Each rank ends with the sum of slice `last`. partial: memory for sums under way, as long as the
// message; it may be the input. place(chunk): where the sum of a chunk of the last slice goes.
// done(chunk): it is there.
template <class Place, class Done>
void ring_reduce(Bench bench, Neighbours& neighbours, const ddp_collective& c,
                 const backend::Cut& cut, int last, char* partial, const Deadline& deadline,
                 Place place, Done done) {
    Mesh& mesh = bench.mesh;
    const int size = mesh.size();
    const char* const own = static_cast<const char*>(c.send);
    const auto bytes_of = [&](const Chunk& chunk) {
        return cut.chunk_size(chunk.slice, chunk.k) * cut.element;
    };
    const std::vector<Chunk> incoming = chunks_from(cut, (last - 2 + size) % size, size);
    const std::size_t slot_bytes = align_up(cut.chunk * cut.element);
    std::byte* const staged = bench.memory.require(Bench::kWindow * slot_bytes);
    std::vector<int> missing(incoming.size(), 1);
    const auto receive = [&](std::size_t i) {
        if (i < incoming.size())
            neighbours.expect(staged + i % Bench::kWindow * slot_bytes, bytes_of(incoming[i]),
                              &missing[i]);
    };
    for (std::size_t i = 0; i < Bench::kWindow; ++i) receive(i);
    const int first = (last - 1 + size) % size;
    for (std::size_t k = 0; k < cut.chunks(first); ++k)
        neighbours.send(own + cut.offset(first, k), cut.chunk_size(first, k) * cut.element);
    for (std::size_t i = 0; i < incoming.size(); ++i) {
        const Chunk& chunk = incoming[i];
        const bool ends = chunk.slice == last;
        mesh.wait(deadline, [&] { return missing[i] == 0; });
        const void* inputs[] = {staged + i % Bench::kWindow * slot_bytes,
                                own + cut.offset(chunk.slice, chunk.k)};
        char* const out = ends ? place(chunk) : partial + cut.offset(chunk.slice, chunk.k);
        cpu::reduce(out, inputs, 2, cut.chunk_size(chunk.slice, chunk.k), c.dtype, c.op,
                    ends ? c.scale : 1);
        receive(i + Bench::kWindow);
        if (ends)
            done(chunk);
        else
            neighbours.send(out, bytes_of(chunk));
    }
}

// Chunks that arrive where they belong go on to the next rank, except those that come from there.
void pass_on(Mesh& mesh, Neighbours& neighbours, const std::vector<Chunk>& incoming,
             const backend::Cut& cut, char* data, int last, const Deadline& deadline) {
    std::vector<int> missing(incoming.size(), 1);
    const auto bytes_of = [&](const Chunk& chunk) {
        return cut.chunk_size(chunk.slice, chunk.k) * cut.element;
    };
    for (std::size_t i = 0; i < incoming.size(); ++i)
        neighbours.expect(data + cut.offset(incoming[i].slice, incoming[i].k),
                          bytes_of(incoming[i]), &missing[i]);
    for (std::size_t i = 0; i < incoming.size(); ++i) {
        mesh.wait(deadline, [&] { return missing[i] == 0; });
        if (incoming[i].slice != last)
            neighbours.send(data + cut.offset(incoming[i].slice, incoming[i].k),
                            bytes_of(incoming[i]));
    }
    mesh.wait_sent(deadline);
}

// Everyone's part in log2(world) rounds (Bruck's algorithm): block j of the result begins with that
// of the rank j places before this one. own: bytes of this rank's part. bytes: of the longest.
const std::byte* gather_blocks(Bench bench, const void* mine, std::size_t own, std::size_t bytes,
                               const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    std::byte* const blocks = bench.memory.require(bytes * static_cast<std::size_t>(mesh.size()));
    if (own > 0) std::memcpy(blocks, mine, own);
    for (int distance = 1; distance < mesh.size(); distance *= 2) {
        const auto count = static_cast<std::size_t>(std::min(distance, mesh.size() - distance));
        int missing = 1;
        mesh.expect(mesh.before(distance), MessageType::kData,
                    blocks + static_cast<std::size_t>(distance) * bytes, count * bytes, &missing);
        mesh.send(mesh.after(distance), MessageType::kData, blocks, count * bytes);
        mesh.wait(deadline, [&] { return missing == 0; });
    }
    mesh.wait_sent(deadline);
    return blocks;
}

// This rank's part of an allgather, and the parts of the others.
void send_to_all(Bench bench, const backend::Cut& cut, const char* mine) {
    const int rank = bench.rank();
    for (std::size_t k = 0; k < cut.chunks(rank); ++k)
        backend::each_after(bench, [&](int peer) {
            bench.send(peer, mine + k * cut.chunk * cut.element,
                       cut.chunk_size(rank, k) * cut.element, k);
        });
}
void expect_from_all(Bench bench, const backend::Cut& cut, char* all, int& missing) {
    for (std::size_t k = 0; k < cut.most_chunks(bench.size()); ++k)
        backend::each_before(bench, [&](int peer) {
            if (k >= cut.chunks(peer)) return;
            ++missing;
            bench.expect(peer, all + cut.offset(peer, k), cut.chunk_size(peer, k) * cut.element,
                         &missing, k);
        });
}

}  // namespace

void ring_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const int rank = mesh.rank(), size = mesh.size();
    const std::size_t bytes = c.count * dtype_size(c.dtype);
    bench.exchange.compare(c, deadline);
    if (bytes * static_cast<std::size_t>(size) <= kGathered) {
        const std::byte* const blocks = gather_blocks(bench, c.send, bytes, bytes, deadline);
        std::vector<const void*> inputs;
        for (int r = 0; r < size; ++r)
            inputs.push_back(blocks + static_cast<std::size_t>((rank - r + size) % size) * bytes);
        return cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
    }
    const backend::Cut cut = backend::cut_evenly(c.count, size, Bench::kChunk, c.dtype);
    char* const result = static_cast<char*>(c.recv);
    Neighbours neighbours(mesh);
    const int last = (rank + 1) % size;
    // In place, sums under way overwrite inputs of this rank that have gone into them.
    ring_reduce(
        bench, neighbours, c, cut, last, result, deadline,
        [&](const Chunk& chunk) { return result + cut.offset(chunk.slice, chunk.k); },
        [&](const Chunk& chunk) {
            neighbours.send(result + cut.offset(last, chunk.k),
                            cut.chunk_size(last, chunk.k) * cut.element);
        });
    pass_on(mesh, neighbours, chunks_from(cut, rank, size), cut, result, (rank + 2) % size,
            deadline);
}

void ring_reduce_scatter(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    bench.exchange.compare(c, deadline);
    const backend::Cut cut = backend::cut_in_parts(c, mesh.size(), Bench::kChunk);
    // In place, as in an allreduce.
    std::vector<char> own(c.counts ? 0 : cut.begin(mesh.size()) * cut.element);
    char* const partial = c.counts ? static_cast<char*>(const_cast<void*>(c.send)) : own.data();
    Neighbours neighbours(mesh);
    ring_reduce(
        bench, neighbours, c, cut, mesh.rank(), partial, deadline,
        [&](const Chunk& chunk) {
            return static_cast<char*>(c.recv) + chunk.k * cut.chunk * cut.element;
        },
        [](const Chunk&) {});
    mesh.wait_sent(deadline);
}

void allgather(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const int rank = mesh.rank(), size = mesh.size();
    const backend::Cut cut = backend::cut_in_parts(c, size, Bench::kChunk);
    char* const all = static_cast<char*>(c.recv);
    const auto part = [&](int of) { return all + cut.offset(of, 0); };
    const auto bytes_of = [&](int of) { return cut.size(of) * cut.element; };
    const auto take_own = [&] {
        if (c.send != part(rank)) std::memcpy(part(rank), c.send, bytes_of(rank));
    };
    bench.exchange.begin(c, deadline);
    if (mesh.full()) {
        send_to_all(bench, cut, static_cast<const char*>(c.send));
        bench.exchange.finish();
        int missing = 0;
        expect_from_all(bench, cut, all, missing);
        take_own();
        mesh.wait(deadline, [&] { return missing == 0; });
        return mesh.wait_sent(deadline);
    }
    bench.exchange.finish();
    std::size_t longest = 0;
    for (int r = 0; r < size; ++r) longest = std::max(longest, bytes_of(r));
    if (longest * static_cast<std::size_t>(size) <= kGathered) {
        const std::byte* const blocks =
            gather_blocks(bench, c.send, bytes_of(rank), longest, deadline);
        for (int r = 0; r < size; ++r)
            std::memcpy(part(r),
                        blocks + static_cast<std::size_t>((rank - r + size) % size) * longest,
                        bytes_of(r));
        return;
    }
    take_own();
    Neighbours neighbours(mesh);
    for (std::size_t k = 0; k < cut.chunks(rank); ++k)
        neighbours.send(all + cut.offset(rank, k), cut.chunk_size(rank, k) * cut.element);
    pass_on(mesh, neighbours, chunks_from(cut, (rank - 1 + size) % size, size), cut, all,
            (rank + 1) % size, deadline);
}

void broadcast(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const backend::Tree tree(mesh.rank(), mesh.size(), c.root);
    const std::size_t bytes = c.count * dtype_size(c.dtype);
    char* const data = static_cast<char*>(c.recv);
    bench.exchange.compare(c, deadline);
    // The root may hand its data over in `send`; everyone's result is in `recv`.
    if (tree.parent < 0 && c.send != c.recv) std::memcpy(data, c.send, bytes);
    const auto piece_at = [bytes](std::size_t begin) {
        return std::min(Bench::kChunk, bytes - begin);
    };
    std::vector<int> missing((bytes + Bench::kChunk - 1) / Bench::kChunk, tree.parent >= 0 ? 1 : 0);
    for (std::size_t k = 0; k < missing.size() && tree.parent >= 0; ++k)
        mesh.expect(tree.parent, MessageType::kData, data + k * Bench::kChunk,
                    piece_at(k * Bench::kChunk), &missing[k], k % mesh.lanes());
    for (std::size_t k = 0; k < missing.size(); ++k) {
        mesh.wait(deadline, [&] { return missing[k] == 0; });
        for (const int child : tree.children)
            mesh.send(child, MessageType::kData, data + k * Bench::kChunk,
                      piece_at(k * Bench::kChunk), k % mesh.lanes());
    }
    mesh.wait_sent(deadline);
}

}  // namespace libddp::tcp
