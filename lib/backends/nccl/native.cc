// Collectives of NCCL itself.
#include <algorithm>

#include "backends/nccl/collectives.h"
#include "backends/nccl/grouped.h"
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

// A complex number is two real ones.
std::size_t numbers_in(std::size_t elements, ddp_dtype dtype) {
    return is_complex(dtype) ? 2 * elements : elements;
}

ncclDataType_t type_of(ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return ncclFloat16;
        case DDP_BF16:
            return ncclBfloat16;
        case DDP_F32:
        case DDP_C64:
            return ncclFloat32;
        case DDP_F64:
        case DDP_C128:
            return ncclFloat64;
        case DDP_I32:
            return ncclInt32;
        case DDP_I64:
            return ncclInt64;
        default:
            return ncclUint8;
    }
}

ncclRedOp_t op_of(ddp_reduce_op op) {
    switch (op) {
        case DDP_PROD:
            return ncclProd;
        case DDP_MIN:
            return ncclMin;
        case DDP_MAX:
            return ncclMax;
        default:
            return ncclSum;
    }
}

// NCCL divides itself where it was asked to fuse, which is where the world is a power of two, and
// then only floating point.
bool divides(const Channel& channel, const ddp_collective& c) {
    return c.op == DDP_SUM && is_floating(c.dtype) && c.scale * channel.world == 1;
}

template <class Reduce>
void reduce_and_scale(const Channel& channel, const ddp_collective& c, Reduce reduce) {
    const bool divided = c.scale != 1 && divides(channel, c);
    reduce(divided ? ncclAvg : op_of(c.op));
    const std::size_t count = part_count(c, channel.rank);
    if (c.scale == 1 || divided || count == 0) return;
    const ddp_segment own{c.recv, c.recv, count};
    transfer(&own, 1, c.dtype, c.dtype, c.scale, stream_of(c.stream));
}

bool all_alike(const Channel& channel, const ddp_collective& c) {
    return !c.counts || std::all_of(c.counts, c.counts + channel.world,
                                    [&](std::uint64_t count) { return count == c.counts[0]; });
}

// In place, with one call for each rank's part. call(comm, part, rank): of NCCL.
template <class CallOf>
void enqueue_in_parts(const Channel& channel, const ddp_collective& c, const void* all,
                      const char* name, const Deadline& deadline, CallOf call) {
    channel.communicator.enqueue(name, deadline, [&](ncclComm_t comm) {
        Grouped group;
        for (int rank = 0; rank < channel.world; ++rank)
            if (part_count(c, rank) > 0) group.note(call(comm, part_of(c, all, rank), rank));
        return group.end();
    });
}

}  // namespace

bool nccl_can_reduce(ddp_dtype dtype, ddp_reduce_op op) {
    switch (op) {
        case DDP_SUM:
            return true;
        case DDP_PROD:
            return !is_complex(dtype);
        default:
            return !is_floating(dtype);
    }
}

void nccl_allreduce(const Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    reduce_and_scale(channel, c, [&](ncclRedOp_t op) {
        channel.communicator.enqueue("allreduce", deadline, [&](ncclComm_t comm) {
            return nccl().ncclAllReduce(c.send, c.recv, numbers_in(c.count, c.dtype),
                                        type_of(c.dtype), op, comm, stream_of(c.stream));
        });
    });
}

void nccl_reduce_scatter(const Channel& channel, const ddp_collective& c,
                         const Deadline& deadline) {
    reduce_and_scale(channel, c, [&](ncclRedOp_t op) {
        const auto numbers_of = [&](int rank) { return numbers_in(part_count(c, rank), c.dtype); };
        if (!all_alike(channel, c))
            return enqueue_in_parts(channel, c, c.send, "reduce_scatter", deadline,
                                    [&](ncclComm_t comm, std::byte* part, int rank) {
                                        return nccl().ncclReduce(part, part, numbers_of(rank),
                                                                 type_of(c.dtype), op, rank, comm,
                                                                 stream_of(c.stream));
                                    });
        channel.communicator.enqueue("reduce_scatter", deadline, [&](ncclComm_t comm) {
            return nccl().ncclReduceScatter(c.send, c.recv, numbers_of(0), type_of(c.dtype), op,
                                            comm, stream_of(c.stream));
        });
    });
}

void broadcast(const Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    channel.communicator.enqueue("broadcast", deadline, [&](ncclComm_t comm) {
        return nccl().ncclBroadcast(c.send, c.recv, c.count * dtype_size(c.dtype), ncclUint8,
                                    c.root, comm, stream_of(c.stream));
    });
}

void allgather(const Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    if (!all_alike(channel, c))
        return enqueue_in_parts(channel, c, c.recv, "allgather", deadline,
                                [&](ncclComm_t comm, std::byte* part, int rank) {
                                    return nccl().ncclBroadcast(part, part, part_bytes(c, rank),
                                                                ncclUint8, rank, comm,
                                                                stream_of(c.stream));
                                });
    channel.communicator.enqueue("allgather", deadline, [&](ncclComm_t comm) {
        return nccl().ncclAllGather(c.send, c.recv, part_bytes(c, 0), ncclUint8, comm,
                                    stream_of(c.stream));
    });
}

}  // namespace libddp::cuda
