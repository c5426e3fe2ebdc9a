#include "backends/nccl/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backends/common/keys.h"
#include "backends/nccl/rank_gpu.h"
#include "device/cuda/check.h"
#include "util/at_exit.h"
#include "util/host.h"
#include "util/mutex.h"
#include "util/quiet_thread.h"

namespace libddp::cuda {
namespace {

using std::chrono::milliseconds;

// How long the destructor waits for NCCL to end, and NCCL for its own threads before it is aborted.
constexpr milliseconds kFree{300}, kFinalize{200};
// How long a process that exits waits for that: NCCL and the CUDA runtime crash when they are torn
// down under a thread of theirs.
constexpr std::int64_t kExitMs = 10'000;
// The same for one that has been in graphs, which may be there until the process ends.
constexpr milliseconds kExitInGraphs{500};
// How long a new communicator waits for others of this process that are ending.
constexpr std::int64_t kOthersMs = 10'000;
constexpr milliseconds kLook{20};
// How long an abort waits for a thread that is inside NCCL. It comes out sooner, unless NCCL itself
// hangs: then the abort is what gets it out.
constexpr milliseconds kInside{50};
// NCCL mostly needs some ten microseconds. A sleep, however short, takes a hundred.
constexpr std::chrono::microseconds kLooking{200}, kPause{50};

// The facts about its GPU that this rank tells the others.
RankGpu rank_gpu(int device, int nccl_version) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    RankGpu gpu;
    // A MIG slice has a number of its own, and the bus address of the GPU that it is part of.
    gpu.id = host_id() + " ";
    for (const char byte : properties.uuid.bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x",
                      static_cast<unsigned>(static_cast<unsigned char>(byte)));
        gpu.id += digits;
    }
    char bus[32] = "";
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
    gpu.name = str("GPU ", bus);
    gpu.nccl = nccl_version;
    const char* share = std::getenv(kShareVariable);
    gpu.shares = share && std::string(share) == "1";
    return gpu;
}

// The communicators of this process that are ending. NCCL frees memory then. Until all kernels of
// the GPU are over, that may keep other threads out of CUDA: also the thread of a rank for which a
// kernel of another rank of this process waits.
class Endings {
public:
    void begin() {
        const Lock lock(mutex_);
        ++count_;
    }
    void end() {
        const Lock lock(mutex_);
        --count_;
        changed_.notify_all();
    }
    // Until there is none, or the deadline.
    void wait(const Deadline& deadline, const std::function<void()>& look) {
        Lock lock(mutex_);
        while (count_ > 0 && !deadline.expired()) {
            lock.unlock();
            look();
            lock.lock();
            if (count_ > 0) changed_.wait_for(lock, kLook);
        }
    }

private:
    Mutex mutex_;
    Condition changed_;
    int count_ DDP_GUARDED_BY(mutex_) = 0;
};

// Never freed: threads that end communicators may still run when the process exits.
Endings& endings() {
    static Endings& instance = *new Endings;
    return instance;
}

constexpr const char* kId = "id";

backend::Keys keys_of(const ddp_backend_host& host, int number) {
    return backend::Keys(host, str("nccl/", number, "/"));
}

}  // namespace

struct Communicator::Shared {
    // Guards comm. NCCL's calls on one communicator exclude each other.
    std::timed_mutex mutex;
    ncclComm_t comm = nullptr;
    std::atomic<bool> in_graphs{false};

    Mutex end_mutex;
    Condition end_changed;
    bool ending DDP_GUARDED_BY(end_mutex) = false, ended DDP_GUARDED_BY(end_mutex) = false;
    std::optional<AtExit> at_exit;  // from when it is ending
    bool counted = false;           // among the endings; written before the thread that ends it

    void wait_at_exit() {
        at_exit.emplace(
            [this](int, const Deadline& deadline) {
                Lock lock(end_mutex);
                const auto soon = std::chrono::steady_clock::now() + kExitInGraphs;
                end_changed.wait_until(lock,
                                       in_graphs ? std::min(soon, deadline.at()) : deadline.at(),
                                       [this]() DDP_REQUIRES(end_mutex) { return ended; });
            },
            kExitMs);
    }

    // On a thread of its own. NCCL waits for its own threads here, and, in the worst case, for
    // ever.
    void finish(int device, bool abort) noexcept {
        try {
            const OnDevice current(device);
            const BesideCaptures beside;
            std::unique_lock inside(mutex, kInside);
            const ncclComm_t ended_comm = std::exchange(comm, nullptr);
            if (inside) inside.unlock();  // NCCL may stay as long as graphs do
            if (ended_comm) {
                if (!abort && finalized(ended_comm))
                    nccl().ncclCommDestroy(ended_comm);
                else
                    nccl().ncclCommAbort(ended_comm);
            }
        } catch (const std::exception&) {
            // The device is gone, and the communicator with it.
        }
        set_ended();
    }

    void set_ended() {
        if (counted) endings().end();
        const Lock lock(end_mutex);
        ended = true;
        end_changed.notify_all();
    }

    static bool finalized(ncclComm_t comm) {
        const Deadline deadline = Deadline::after_ms(kFinalize.count());
        ncclResult_t result = nccl().ncclCommFinalize(comm);
        while (result == ncclInProgress && !deadline.expired()) {
            std::this_thread::sleep_for(kPause);
            if (nccl().ncclCommGetAsyncError(comm, &result) != ncclSuccess) return false;
        }
        return result == ncclSuccess;
    }
};

Communicator::Communicator(const ddp_backend_host& host, int number, int device,
                           const Deadline& deadline, std::function<void()> look)
    : device_(device), look_(std::move(look)), shared_(std::make_shared<Shared>()) {
    // No rank is past the meeting, so no kernel can wait for another rank yet.
    endings().wait(Deadline::after_ms(std::min(kOthersMs, deadline.remaining_ms())), look_);
    ncclUniqueId id;
    meet(host, number, deadline, id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const OnDevice current(device);
    const BesideCaptures beside;
    try {
        const std::scoped_lock lock(shared_->mutex);
        settle(
            nccl().ncclCommInitRankConfig(&shared_->comm, host.world_size, id, host.rank, &config),
            "connecting the GPUs", deadline);
        AtExit::prepare();  // after what CUDA and NCCL have registered, which this must come before
    } catch (...) {
        end(true);
        throw;
    }
    // NCCL has heard of all ranks, and so they have read the id.
    if (host.rank == 0 && host.world_size > 1) keys_of(host, number).forget(kId);
}

Communicator::~Communicator() {
    try {
        end(false);
    } catch (const std::exception&) {
        // No thread can be started: the process keeps what NCCL has.
    }
    Lock lock(shared_->end_mutex);
    shared_->end_changed.wait_until(
        lock, std::chrono::steady_clock::now() + kFree,
        [&]() DDP_REQUIRES(shared_->end_mutex) { return shared_->ended; });
}

// Rank 0 hears from all where they are, and then tells either the id under which NCCL meets or why
// it cannot.
void Communicator::meet(const ddp_backend_host& host, int number, const Deadline& deadline,
                        ncclUniqueId& id) {
    constexpr char kGo = '+', kGoShared = '=', kRefuse = '-';
    if (host.world_size == 1) return check(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    const backend::Keys keys = keys_of(host, number);
    const RankGpu mine = rank_gpu(device_, nccl().version);
    std::string answer;
    if (host.rank == 0) {
        std::vector<RankGpu> gpus{mine};
        for (int rank = 1; rank < host.world_size; ++rank) {
            gpus.push_back(decode(keys.get(std::to_string(rank), deadline)));
            keys.forget(std::to_string(rank));
        }
        int culprit = -1;
        const std::string fault = fault_of(gpus, &culprit);
        if (fault.empty()) {
            check(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
            answer =
                (any_shared(gpus) ? kGoShared : kGo) + std::string(id.internal, sizeof id.internal);
        } else {
            answer = str(kRefuse, culprit, ' ', fault);
        }
        keys.set(kId, answer);
    } else {
        keys.set(std::to_string(host.rank), encode(mine));
        answer = keys.get(kId, deadline);
    }
    if (answer.size() == 1 + sizeof id.internal && answer[0] != kRefuse) {
        shares_gpu_ = answer[0] == kGoShared;
        std::memcpy(id.internal, answer.data() + 1, sizeof id.internal);
        return;
    }
    const std::size_t space = std::min(answer.find(' '), answer.size() - 1);
    ErrorInfo error{DDP_ERROR_INVALID_ARGUMENT, answer.substr(space + 1)};
    error.rank = std::atoi(answer.c_str() + 1);
    throw Error(error);
}

void Communicator::note_graph() {
    shared_->in_graphs = true;
}

void Communicator::enqueue(const char* name, const Deadline& deadline,
                           const std::function<ncclResult_t(ncclComm_t)>& calls) {
    const std::scoped_lock lock(shared_->mutex);
    look_();
    if (!shared_->comm) fail(DDP_ERROR_ABORTED, "the group was aborted");
    settle(calls(shared_->comm), name, deadline);
}

// With the mutex held.
void Communicator::settle(ncclResult_t result, const char* name, const Deadline& deadline) {
    const auto begin = std::chrono::steady_clock::now();
    while (result == ncclInProgress) {
        look_();
        if (deadline.expired())
            fail(DDP_ERROR_TIMEOUT, name,
                 ": NCCL was not ready in time; another rank may not have come");
        if (std::chrono::steady_clock::now() - begin < kLooking)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(kPause);
        check(nccl().ncclCommGetAsyncError(shared_->comm, &result), "ncclCommGetAsyncError",
              shared_->comm);
    }
    check(result, name, shared_->comm);
}

void Communicator::check_enqueued() {
    // A thread that is inside NCCL just now learns of an error, too.
    const std::unique_lock inside(shared_->mutex, std::try_to_lock);
    if (!inside || !shared_->comm) return;
    ncclResult_t result = ncclSuccess;
    check(nccl().ncclCommGetAsyncError(shared_->comm, &result), "ncclCommGetAsyncError",
          shared_->comm);
    if (result != ncclInProgress) check(result, "an operation of NCCL", shared_->comm);
}

void Communicator::abort() {
    end(true);
}

void Communicator::end(bool abort) {
    {
        const Lock lock(shared_->end_mutex);
        if (shared_->ending) return;
        shared_->ending = true;
    }
    shared_->counted = !shared_->in_graphs;
    if (shared_->counted) endings().begin();
    // While the process exits, its end is NCCL's, too.
    if (AtExit::exiting()) return shared_->set_ended();
    try {
        shared_->wait_at_exit();
        if (AtExit::exiting()) return shared_->set_ended();
        quiet_thread([shared = shared_, device = device_, abort] {
            shared->finish(device, abort);
        }).detach();
    } catch (...) {
        shared_->set_ended();
        throw;
    }
}

}  // namespace libddp::cuda
