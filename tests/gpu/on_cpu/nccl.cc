// NCCL's functions for ranks that are threads of one process, on the streams of stream.h. As in
// NCCL, a communicator that does not block is ready some time after it was asked for, operations
// begin when all ranks' streams have come to them, and an abort ends those that wait.
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/on_cpu/stream.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace {

struct Call {
    enum Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv } kind;
    const void* send;
    void* recv;
    std::size_t bytes;  // of send (allgather, send), or of the result
    ddp_dtype dtype;
    ncclRedOp_t op;
    int peer;
};
using Calls = std::vector<Call>;  // of one group, or a single one

ddp_dtype dtype_of(ncclDataType_t type) {
    switch (type) {
        case ncclFloat16:
            return DDP_F16;
        case ncclBfloat16:
            return DDP_BF16;
        case ncclFloat32:
            return DDP_F32;
        case ncclFloat64:
            return DDP_F64;
        case ncclInt32:
            return DDP_I32;
        case ncclInt64:
            return DDP_I64;
        default:
            return DDP_U8;
    }
}

// The ranks of one id.
struct Clique {
    explicit Clique(int size) : world(static_cast<std::size_t>(size)), calls(world) {}

    // Returns when all ranks are in the same operation and it is done; false if one gave up.
    bool run(std::size_t rank, const Calls* mine, const std::atomic<bool>& aborted) {
        std::unique_lock lock(mutex);
        if (mine && !mine->empty() && is_of_pair(mine->front()))
            return run_pairs(lock, static_cast<int>(rank), *mine, aborted);
        if (aborted) return false;
        calls[rank] = mine;
        const std::uint64_t turn = turns;
        if (++arrived == world) {
            carry_out();
            arrived = 0;
            ++turns;
            changed.notify_all();
            return true;
        }
        while (turns == turn) {
            if (aborted) {
                --arrived;
                return false;
            }
            changed.wait_for(lock, std::chrono::milliseconds(1));
        }
        return true;
    }

    static bool is_of_pair(const Call& call) {
        return call.kind == Call::kSend || call.kind == Call::kRecv;
    }

    // Sends and receives need the two ranks alone.
    bool run_pairs(std::unique_lock<std::mutex>& lock, int rank, const Calls& mine,
                   const std::atomic<bool>& aborted) {
        std::size_t missing = mine.size();
        for (const Call& call : mine) {
            const bool sends = call.kind == Call::kSend;
            const std::pair<int, int> way =
                sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank);
            auto& others = (sends ? receivers : senders)[way];
            if (others.empty()) {
                (sends ? senders : receivers)[way].push_back({&call, &missing});
                continue;
            }
            const Waiting other = others.front();
            others.pop_front();
            const Call &send = sends ? call : *other.call, &receive = sends ? *other.call : call;
            if (receive.bytes == send.bytes) std::memcpy(receive.recv, send.send, send.bytes);
            --*other.missing;
            --missing;
        }
        changed.notify_all();
        while (missing > 0 && !aborted) changed.wait_for(lock, std::chrono::milliseconds(1));
        if (missing == 0) return true;
        for (auto* waiting : {&senders, &receivers})
            for (auto& [way, calls_of_way] : *waiting)
                std::erase_if(calls_of_way,
                              [&](const Waiting& each) { return each.missing == &missing; });
        return false;
    }

    void carry_out() {
        if (!calls[0] || calls[0]->empty()) return;  // a meeting, and nothing else
        for (std::size_t i = 0; i < calls[0]->size(); ++i) carry_out(i);
    }

    // The call number i of a group is the same on every rank.
    const Call& of(const Calls* theirs, std::size_t i) const {
        const Call &call = theirs->at(i), &first = calls[0]->at(i);
        if (theirs->size() != calls[0]->size() || call.kind != first.kind ||
            call.bytes != first.bytes || call.peer != first.peer)
            std::abort();
        return call;
    }

    void carry_out(std::size_t i) {
        const Call& first = calls[0]->at(i);
        switch (first.kind) {
            case Call::kBroadcast:
                return broadcast(i, static_cast<std::size_t>(first.peer));
            case Call::kAllGather:
                return gather(i);
            default:
                return reduce(i, first);
        }
    }

    void reduce(std::size_t i, const Call& call) {
        const bool scatter = call.kind == Call::kReduceScatter;
        const std::size_t item = libddp::dtype_size(call.dtype), count = call.bytes / item;
        const ddp_reduce_op op = call.op == ncclProd  ? DDP_PROD
                                 : call.op == ncclMin ? DDP_MIN
                                 : call.op == ncclMax ? DDP_MAX
                                                      : DDP_SUM;
        std::vector<std::vector<std::byte>> results(world, std::vector<std::byte>(call.bytes));
        for (std::size_t rank = 0; rank < world; ++rank) {
            std::vector<const void*> inputs;
            for (const Calls* theirs : calls)
                inputs.push_back(static_cast<const std::byte*>(of(theirs, i).send) +
                                 (scatter ? rank * call.bytes : 0));
            libddp::cpu::reduce(results[rank].data(), inputs.data(), world, count, call.dtype, op,
                                call.op == ncclAvg ? 1.0 / static_cast<double>(world) : 1);
        }
        for (std::size_t rank = 0; rank < world; ++rank)
            if (call.kind != Call::kReduce || static_cast<int>(rank) == call.peer)
                std::memcpy(of(calls[rank], i).recv, results[rank].data(), call.bytes);
    }

    void broadcast(std::size_t i, std::size_t root) {
        const Call& given = of(calls[root], i);
        const auto* begin = static_cast<const std::byte*>(given.send);
        const std::vector<std::byte> data(begin, begin + given.bytes);
        for (const Calls* theirs : calls) std::memcpy(of(theirs, i).recv, data.data(), data.size());
    }

    void gather(std::size_t i) {
        std::vector<std::byte> all;
        for (const Calls* theirs : calls) {
            const auto* part = static_cast<const std::byte*>(of(theirs, i).send);
            all.insert(all.end(), part, part + of(theirs, i).bytes);
        }
        for (const Calls* theirs : calls) std::memcpy(of(theirs, i).recv, all.data(), all.size());
    }

    const std::size_t world;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<const Calls*> calls;
    struct Waiting {
        const Call* call;
        std::size_t* missing;  // of its group
    };
    std::map<std::pair<int, int>, std::deque<Waiting>> senders, receivers;  // by from and to
    std::size_t arrived = 0;
    std::uint64_t turns = 0;
};

}  // namespace

// Never freed: operations may still look at it when an abort has returned.
struct ncclComm {
    std::shared_ptr<Clique> clique;
    std::size_t rank = 0;
    std::atomic<bool> aborted{false};
    std::atomic<ncclResult_t> state{ncclInProgress};
    std::atomic<int> graphs{0};  // that it is part of

    void wait_for_graphs() const {
        while (graphs > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
};

namespace {

std::mutex cliques_mutex;
// Never freed: as ncclComm.
std::map<std::string, std::weak_ptr<Clique>>& cliques =
    *new std::map<std::string, std::weak_ptr<Clique>>;
std::atomic<int> ending{0};
thread_local int group_depth = 0;
thread_local Calls group_calls;
thread_local ncclComm_t group_comm = nullptr;
thread_local cudaStream_t group_stream = nullptr;

ncclResult_t launch(ncclComm_t comm, Calls calls, cudaStream_t stream) {
    if (comm->state != ncclSuccess) return ncclInvalidUsage;  // a caller that did not wait
    if (const auto graph = on_cpu::stream_of(stream).capture()) {
        ++comm->graphs;
        graph->at_end([comm] { --comm->graphs; });
    }
    on_cpu::stream_of(stream).enqueue(
        [comm, calls = std::move(calls)] { comm->clique->run(comm->rank, &calls, comm->aborted); });
    comm->state = ncclInProgress;
    std::thread([comm] {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        comm->state = ncclSuccess;
    }).detach();
    return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, const Call& call, cudaStream_t stream) {
    if (group_depth == 0) return launch(comm, {call}, stream);
    group_calls.push_back(call);
    group_comm = comm;
    group_stream = stream;
    return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    const char* said = std::getenv("ON_CPU_NCCL_VERSION");
    *version = said ? std::atoi(said) : NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) {
    return "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t) {
    return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static std::atomic<int> next{0};
    std::memset(id, 0, sizeof *id);
    const int number = ++next;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (config->blocking != 0) return ncclInvalidUsage;
    auto* created = new ncclComm;
    {
        const std::lock_guard lock(cliques_mutex);
        auto& known = cliques[std::string(id.internal, sizeof id.internal)];
        created->clique = known.lock();
        if (!created->clique) known = created->clique = std::make_shared<Clique>(world);
    }
    created->rank = static_cast<std::size_t>(rank);
    *comm = created;
    std::thread([created] {
        if (created->clique->run(created->rank, nullptr, created->aborted))
            created->state = ncclSuccess;
    }).detach();
    return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
    return ncclSuccess;
}
// With ON_CPU_NCCL_SLOW_END it takes longer than libddp waits, and says when it has ended.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ++ending;
    comm->wait_for_graphs();
    if (std::getenv("ON_CPU_NCCL_SLOW_END")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        std::fputs("the communicator has ended\n", stderr);
    }
    --ending;
    return ncclSuccess;
}
// For tests: how many are in it.
int on_cpu_nccl_ending() {
    return ending;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;
    comm->wait_for_graphs();
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    *state = comm->state;
    return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
    return cudaMallocFromPoolAsync(pointer, bytes, nullptr, nullptr) == cudaSuccess
               ? ncclSuccess
               : ncclSystemError;
}
ncclResult_t ncclMemFree(void* pointer) {
    cudaFreeAsync(pointer, nullptr);
    return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, size_t, void** handle) {
    *handle = memory;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
    return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const ddp_dtype dtype = dtype_of(type);
    return add(comm,
               {Call::kAllReduce, send, recv, count * libddp::dtype_size(dtype), dtype, op, 0},
               stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const ddp_dtype dtype = dtype_of(type);
    return add(comm,
               {Call::kReduceScatter, send, recv, count * libddp::dtype_size(dtype), dtype, op, 0},
               stream);
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    const ddp_dtype dtype = dtype_of(type);
    return add(comm,
               {Call::kReduce, send, recv, count * libddp::dtype_size(dtype), dtype, op, root},
               stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return add(comm,
               {Call::kBroadcast, send, recv, count * libddp::dtype_size(dtype_of(type)), DDP_U8,
                ncclSum, root},
               stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return add(comm,
               {Call::kAllGather, send, recv, count * libddp::dtype_size(dtype_of(type)), DDP_U8,
                ncclSum, 0},
               stream);
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, {Call::kSend, send, nullptr, count, DDP_U8, ncclSum, peer}, stream);
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, {Call::kRecv, nullptr, recv, count, DDP_U8, ncclSum, peer}, stream);
}
ncclResult_t ncclGroupStart() {
    ++group_depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (--group_depth > 0 || group_calls.empty()) return ncclSuccess;
    return launch(group_comm, std::exchange(group_calls, {}), group_stream);
}

}  // extern "C"
