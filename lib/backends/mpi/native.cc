// Collectives of MPI itself.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/common/slices.h"
#include "backends/mpi/collectives.h"
#include "backends/mpi/process.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "util/error.h"

namespace libddp::mpi {
namespace {

// Long enough for MPI's own algorithms, far below the 2^31 - 1 elements that it counts to.
constexpr std::size_t kMpiBlockBytes = std::size_t{4} << 20;

// The type that carries elements while MPI reduces them. It has no f16 and bf16; in f32 their sum
// is also rounded but once.
ddp_dtype carried_as(ddp_dtype dtype) {
    return dtype == DDP_F16 || dtype == DDP_BF16 ? DDP_F32 : dtype;
}

MPI_Datatype mpi_type(ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F32:
            return MPI_FLOAT;
        case DDP_F64:
            return MPI_DOUBLE;
        case DDP_I32:
            return MPI_INT32_T;
        case DDP_I64:
            return MPI_INT64_T;
        case DDP_U8:
            return MPI_UINT8_T;
        case DDP_C64:
            return MPI_C_FLOAT_COMPLEX;
        case DDP_C128:
            return MPI_C_DOUBLE_COMPLEX;
        default:
            fail(DDP_ERROR_INTERNAL, "MPI has no type for ", dtype_name(dtype));
    }
}

MPI_Op mpi_op(ddp_reduce_op op) {
    switch (op) {
        case DDP_PROD:
            return MPI_PROD;
        case DDP_MIN:
            return MPI_MIN;
        case DDP_MAX:
            return MPI_MAX;
        default:
            return MPI_SUM;
    }
}

void add(Requests& requests, int code, MPI_Request request, const char* call) {
    check(code, call);
    requests.push_back(request);
}

}  // namespace

bool mpi_can_reduce(ddp_dtype dtype, ddp_reduce_op op) {
    return op == DDP_SUM || !is_floating(dtype);
}

void mpi_allreduce(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const ddp_dtype carried = carried_as(c.dtype);
    const std::size_t item = dtype_size(c.dtype), carried_item = dtype_size(carried);
    const auto staged = [&](const Block& block) {
        return channel.buffers.require(block.slot, block.count * carried_item);
    };
    pipeline(
        channel, Blocks(c.count, carried_item, kMpiBlockBytes), deadline,
        [&](const Block& block) {
            std::byte* data = staged(block);
            const auto* source = static_cast<const std::byte*>(c.send) + block.at * item;
            note_copy(c, block.count * item);
            if (carried == c.dtype)
                std::memcpy(data, source, block.count * item);
            else
                cpu::convert(data, carried, source, c.dtype, block.count);
            return channel.begin(
                block.slot, [comm = channel.comm, data, count = static_cast<int>(block.count),
                             op = mpi_op(c.op), type = mpi_type(carried)](Requests& requests) {
                    MPI_Request request = MPI_REQUEST_NULL;
                    const int code =
                        MPI_Iallreduce(MPI_IN_PLACE, data, count, type, op, comm, &request);
                    add(requests, code, request, "MPI_Iallreduce");
                });
        },
        [&](const Block& block) {
            std::byte* data = staged(block);
            std::byte* target = static_cast<std::byte*>(c.recv) + block.at * item;
            note_copy(c, block.count * item);
            if (carried == c.dtype)
                return cpu::scale_copy(target, data, block.count, c.dtype, c.scale);
            cpu::scale_copy(data, data, block.count, carried, c.scale);
            cpu::convert(target, c.dtype, data, carried, block.count);
        });
}

void broadcast(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const bool is_root = channel.rank == c.root;
    const std::size_t bytes = c.count * dtype_size(c.dtype);
    pipeline(
        channel, Blocks(bytes, 1, kMpiBlockBytes), deadline,
        [&](const Block& block) {
            std::byte* data = channel.buffers.require(block.slot, block.count);
            if (is_root)
                copy(c, data, static_cast<const std::byte*>(c.send) + block.at, block.count);
            return channel.begin(
                block.slot, [comm = channel.comm, data, count = static_cast<int>(block.count),
                             root = c.root](Requests& requests) {
                    MPI_Request request = MPI_REQUEST_NULL;
                    const int code = MPI_Ibcast(data, count, MPI_BYTE, root, comm, &request);
                    add(requests, code, request, "MPI_Ibcast");
                });
        },
        [&](const Block& block) {
            const std::byte* data = channel.buffers.require(block.slot, block.count);
            // The root may hand its data over in `send`; everyone's result is in `recv`.
            if (!is_root || c.send != c.recv)
                copy(c, static_cast<std::byte*>(c.recv) + block.at, data, block.count);
        });
}

void allgather(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const std::size_t item = dtype_size(c.dtype), ranks = channel.ranks();
    const backend::Rounds rounds(c, channel.size, std::max(kMpiBlockBytes / item, ranks));
    const auto bytes = [&](int rank, std::size_t round) {
        return rounds.count(rank, round) * item;
    };
    // In a slot, behind which MPI finds its sizes and places of different parts.
    const auto place = [&](int rank, std::size_t round) {
        return c.counts ? rounds.place(rank) * item
                        : static_cast<std::size_t>(rank) * bytes(rank, round);
    };
    const std::size_t data_bytes = align_up(rounds.elements() * item);
    const auto slot = [&](const Block& block) {
        return channel.buffers.require(block.slot, data_bytes + 2 * ranks * sizeof(int));
    };
    pipeline(
        channel, Blocks(rounds.size(), 1, 1), deadline,
        [&](const Block& block) {
            const std::size_t round = block.at, own = bytes(channel.rank, round);
            std::byte* all = slot(block);
            int* sizes = reinterpret_cast<int*>(all + data_bytes);
            int* places = sizes + ranks;
            for (int rank = 0; rank < channel.size; ++rank) {
                sizes[rank] = static_cast<int>(bytes(rank, round));
                places[rank] = static_cast<int>(place(rank, round));
            }
            const std::size_t before = rounds.before(channel.rank, round) * item;
            copy(c, all + place(channel.rank, round),
                 static_cast<const std::byte*>(c.send) + before, own);
            return channel.begin(block.slot, [comm = channel.comm, all, sizes, places,
                                              alike = !c.counts](Requests& requests) {
                MPI_Request request = MPI_REQUEST_NULL;
                const int code = alike ? MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all,
                                                        sizes[0], MPI_BYTE, comm, &request)
                                       : MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all,
                                                         sizes, places, MPI_BYTE, comm, &request);
                add(requests, code, request, alike ? "MPI_Iallgather" : "MPI_Iallgatherv");
            });
        },
        [&](const Block& block) {
            const std::byte* all = slot(block);
            for (int rank = 0; rank < channel.size; ++rank)
                copy(c, static_cast<std::byte*>(c.recv) + rounds.at(rank, block.at) * item,
                     all + place(rank, block.at), bytes(rank, block.at));
        });
}

void all_to_all(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const std::size_t item = dtype_size(c.dtype), ranks = channel.ranks();
    const backend::ExchangeRounds rounds(c, channel.size, kMpiBlockBytes / item);
    const Exchanged exchanged(c, channel.size);
    std::vector<std::uint64_t> counts;
    const ddp_collective input = exchanged.input(channel.rank),
                         output = exchanged.output(channel.rank, counts);
    const auto sent = [&](int to, std::size_t round) {
        return rounds.count(channel.rank, to, round) * item;
    };
    const auto received = [&](int from, std::size_t round) {
        return rounds.count(from, channel.rank, round) * item;
    };
    const auto sum = [&](const auto& bytes, std::size_t round) {
        std::size_t total = 0;
        for (int rank = 0; rank < channel.size; ++rank) total += bytes(rank, round);
        return align_up(total);
    };
    // Behind what goes out and what comes in, MPI finds the sizes and places of both.
    const auto slot = [&](const Block& block) {
        return channel.buffers.require(
            block.slot, sum(sent, block.at) + sum(received, block.at) + 4 * ranks * sizeof(int));
    };
    pipeline(
        channel, Blocks(rounds.size(), 1, 1), deadline,
        [&](const Block& block) {
            const std::size_t round = block.at;
            std::byte* const out = slot(block);
            std::byte* const in = out + sum(sent, round);
            int* const sizes = reinterpret_cast<int*>(in + sum(received, round));
            int* const places = sizes + ranks;
            int* const in_sizes = places + ranks;
            int* const in_places = in_sizes + ranks;
            int next = 0, next_in = 0;
            for (int rank = 0; rank < channel.size; ++rank) {
                sizes[rank] = static_cast<int>(sent(rank, round));
                in_sizes[rank] = static_cast<int>(received(rank, round));
                if (sizes[rank] > 0)
                    copy(c, out + next,
                         part_of(input, c.send, rank) +
                             rounds.before(channel.rank, rank, round) * item,
                         sent(rank, round));
                places[rank] = std::exchange(next, next + sizes[rank]);
                in_places[rank] = std::exchange(next_in, next_in + in_sizes[rank]);
            }
            return channel.begin(block.slot, [comm = channel.comm, out, in, sizes, places, in_sizes,
                                              in_places, alike = !c.counts](Requests& requests) {
                MPI_Request request = MPI_REQUEST_NULL;
                const int code = alike ? MPI_Ialltoall(out, sizes[0], MPI_BYTE, in, in_sizes[0],
                                                       MPI_BYTE, comm, &request)
                                       : MPI_Ialltoallv(out, sizes, places, MPI_BYTE, in, in_sizes,
                                                        in_places, MPI_BYTE, comm, &request);
                add(requests, code, request, alike ? "MPI_Ialltoall" : "MPI_Ialltoallv");
            });
        },
        [&](const Block& block) {
            const std::byte* in = slot(block) + sum(sent, block.at);
            for (int from = 0; from < channel.size; ++from) {
                const std::size_t bytes = received(from, block.at);
                if (bytes > 0)
                    copy(c,
                         part_of(output, c.recv, from) +
                             rounds.before(from, channel.rank, block.at) * item,
                         in, bytes);
                in += bytes;
            }
        });
}

void barrier(Channel& channel, const Deadline& deadline) {
    Pending met = channel.begin(0, [comm = channel.comm](Requests& requests) {
        MPI_Request request = MPI_REQUEST_NULL;
        const int code = MPI_Ibarrier(comm, &request);
        add(requests, code, request, "MPI_Ibarrier");
    });
    channel.wait(met, deadline);
}

}  // namespace libddp::mpi
