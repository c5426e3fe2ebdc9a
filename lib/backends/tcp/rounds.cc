// All_to_all where not every rank is connected with every other.
#include <cstring>
#include <memory>
#include <vector>

#include "backends/tcp/operations.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::tcp {
namespace {

// The parts by the distance from the rank that sends them to the rank that gets them. A rank has one
// of each distance at any time, and round k moves those whose distance has bit k. So before round k
// a rank has the part of distance d that began d mod 2^k ranks before it.
class Parts {
public:
    Parts(const ddp_collective& c, int rank, int size) : exchanged_(c, size), size_(size) {
        const ddp_collective input = exchanged_.input(rank);
        for (int distance = 0; distance < size; ++distance)
            held_.push_back(part_of(input, c.send, (rank + distance) % size));
    }

    // The distances that move in a round, in order.
    std::vector<int> moving(int step) const {
        std::vector<int> distances;
        for (int distance = 0; distance < size_; ++distance)
            if ((distance & step) != 0) distances.push_back(distance);
        return distances;
    }
    // The size of the part that `holder` has before the round.
    std::size_t bytes(int holder, int distance, int step) const {
        const int from = (holder + size_ - distance % step) % size_;
        return exchanged_.bytes(from, (from + distance) % size_);
    }
    std::byte*& held(int distance) { return held_[static_cast<std::size_t>(distance)]; }

private:
    const Exchanged exchanged_;
    const int size_;
    std::vector<std::byte*> held_;
};

using Buffer = std::unique_ptr<std::byte[]>;

Buffer make_buffer(std::size_t bytes) {
    return Buffer(new std::byte[bytes]);
}

// All chunks of a message, in one direction.
template <class Each>
void each_chunk(std::size_t bytes, Each each) {
    for (std::size_t k = 0; k * Bench::kChunk < bytes; ++k)
        each(k * Bench::kChunk, std::min(Bench::kChunk, bytes - k * Bench::kChunk), k);
}

}  // namespace

void all_to_all_in_rounds(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const int rank = mesh.rank(), size = mesh.size();
    bench.exchange.compare(c, deadline);
    Parts parts(c, rank, size);
    std::vector<Buffer> received;  // parts are in there until the end
    for (int step = 1; step < size; step *= 2) {
        const int from = mesh.before(step), to = mesh.after(step);
        std::size_t out_bytes = 0, in_bytes = 0;
        for (const int distance : parts.moving(step)) {
            out_bytes += parts.bytes(rank, distance, step);
            in_bytes += parts.bytes(from, distance, step);
        }
        const Buffer out = make_buffer(out_bytes);
        std::byte* const in = received.emplace_back(make_buffer(in_bytes)).get();
        std::byte *next_out = out.get(), *next_in = in;
        for (const int distance : parts.moving(step)) {
            const std::size_t bytes = parts.bytes(rank, distance, step);
            if (bytes > 0) std::memcpy(next_out, parts.held(distance), bytes);
            next_out += bytes;
            parts.held(distance) = next_in;
            next_in += parts.bytes(from, distance, step);
        }
        int missing = 0;
        each_chunk(in_bytes, [&](std::size_t begin, std::size_t bytes, std::size_t k) {
            ++missing;
            bench.expect(from, in + begin, bytes, &missing, k);
        });
        each_chunk(out_bytes, [&](std::size_t begin, std::size_t bytes, std::size_t k) {
            bench.send(to, out.get() + begin, bytes, k);
        });
        bench.wait(deadline, [&] { return missing == 0; });
        bench.wait_sent(deadline);
    }
    std::vector<std::uint64_t> counts;
    const ddp_collective output = Exchanged(c, size).output(rank, counts);
    auto* recv = static_cast<std::byte*>(c.recv);
    for (int from = 0; from < size; ++from) {
        const std::size_t bytes = part_bytes(output, from);
        if (bytes > 0) std::memcpy(recv, parts.held((rank + size - from) % size), bytes);
        recv += bytes;
    }
}

}  // namespace libddp::tcp
