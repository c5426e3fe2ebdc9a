#include "support/thread_backend.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace {

enum Mode { kFused, kPlain, kSingle, kCaller };

// Shared by the ranks of one group.
struct Hub {
    explicit Hub(int world) : slots(static_cast<size_t>(world)) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<const void*> slots;
    int arrived = 0;
    long round = 0;
    bool aborted = false;
    std::vector<char> result;
};

struct Member {
    std::shared_ptr<Hub> hub;
    int rank = 0, world = 1;
    Mode mode = kFused;
    std::thread::id thread;
};

// Such threads block every signal; those of the tests block none.
bool on_a_thread_of_libddp() {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    return sigismember(&blocked, SIGTERM) == 1;
}

ddp_status set_failure(ddp_backend_failure* failure, ddp_status status, const char* text) {
    std::snprintf(failure->message, sizeof failure->message, "%s", text);
    return status;
}

// Waits until all ranks are here; the last one runs `last` before anybody goes on.
template <class F>
ddp_status meet(Member& m, const void* mine, int64_t timeout_ms, ddp_backend_failure* failure,
                F&& last) {
    Hub& hub = *m.hub;
    std::unique_lock lock(hub.mutex);
    hub.slots[static_cast<size_t>(m.rank)] = mine;
    const long round = hub.round;
    // After an abort some ranks may have left with their memory: nobody reads a slot any more.
    if (hub.aborted) return set_failure(failure, DDP_ERROR_ABORTED, "aborted");
    if (++hub.arrived == m.world) {
        last();
        hub.arrived = 0;
        ++hub.round;
        hub.changed.notify_all();
        return DDP_OK;
    }
    bool came = hub.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                     [&] { return hub.round != round || hub.aborted; });
    if (hub.round != round) return DDP_OK;
    if (came) return set_failure(failure, DDP_ERROR_ABORTED, "aborted");
    hub.aborted = true;
    hub.changed.notify_all();
    return set_failure(failure, DDP_ERROR_TIMEOUT, "a rank did not come in time");
}

template <Mode mode>
ddp_status create(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure) {
    if (*host->options)
        return set_failure(failure, DDP_ERROR_INVALID_ARGUMENT, "threads: no options are known");
    auto member = std::make_unique<Member>();
    member->rank = host->rank;
    member->world = host->world_size;
    member->mode = mode;
    if (host->rank == 0) {
        member->hub = std::make_shared<Hub>(host->world_size);
        auto* shared = new std::shared_ptr<Hub>(member->hub);
        if (host->world_size > 1) {
            char text[32];
            std::snprintf(text, sizeof text, "%p", static_cast<void*>(shared));
            if (auto status =
                    host->store_set(host->handle, "hub", text, std::strlen(text), failure))
                return status;
            Hub* hub = member->hub.get();
            // The pointer is good until everyone has taken it.
            if (auto status =
                    meet(*member, nullptr, host->timeout_ms, failure, [hub] { (void)hub; })) {
                delete shared;
                return status;
            }
        }
        delete shared;
    } else {
        void* text = nullptr;
        size_t size = 0;
        if (auto status =
                host->store_get(host->handle, "hub", host->timeout_ms, &text, &size, failure))
            return status;
        void* shared = nullptr;
        std::sscanf(static_cast<char*>(text), "%p", &shared);
        host->store_value_free(text);
        member->hub = *static_cast<std::shared_ptr<Hub>*>(shared);
        if (auto status = meet(*member, nullptr, host->timeout_ms, failure, [] {})) return status;
    }
    *transport = member.release();
    return DDP_OK;
}

void destroy(void* transport) {
    delete static_cast<Member*>(transport);
}

template <Mode mode>
uint32_t capabilities(void*) {
    switch (mode) {
        case kFused:
            return DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC;
        case kSingle:
            return DDP_BACKEND_ONE_THREAD;
        case kCaller:
            return DDP_BACKEND_CALLER_THREAD;
        default:
            return 0;
    }
}

void abort_all(void* transport) {
    Hub& hub = *static_cast<Member*>(transport)->hub;
    std::lock_guard lock(hub.mutex);
    hub.aborted = true;
    hub.changed.notify_all();
}

ddp_status run(void* transport, const ddp_collective* c, ddp_backend_failure* failure) {
    auto& m = *static_cast<Member*>(transport);
    if (m.mode == kSingle) {
        if (m.thread == std::thread::id()) m.thread = std::this_thread::get_id();
        if (m.thread != std::this_thread::get_id())
            return set_failure(failure, DDP_ERROR_INTERNAL, "called on a second thread");
    }
    if (m.mode == kCaller && on_a_thread_of_libddp())
        return set_failure(failure, DDP_ERROR_INTERNAL,
                           "called on a thread that is not the program's");
    const size_t item = libddp::dtype_size(c->dtype), world = static_cast<size_t>(m.world),
                 rank = static_cast<size_t>(m.rank);
    const size_t bytes = item * c->count;
    Hub& hub = *m.hub;
    auto last = [&] {
        const auto& in = hub.slots;
        switch (c->kind) {
            case DDP_COLLECTIVE_ALLREDUCE:
            case DDP_COLLECTIVE_REDUCE_SCATTER: {
                const size_t count =
                    c->kind == DDP_COLLECTIVE_ALLREDUCE ? c->count : c->count * world;
                hub.result.resize(count * item);
                libddp::cpu::reduce(hub.result.data(), in.data(), in.size(), count, c->dtype, c->op,
                                    c->scale);
                break;
            }
            case DDP_COLLECTIVE_BROADCAST: {
                const char* root = static_cast<const char*>(in[static_cast<size_t>(c->root)]);
                hub.result.assign(root, root + bytes);
                break;
            }
            case DDP_COLLECTIVE_ALLGATHER:
                hub.result.resize(bytes * world);
                for (size_t r = 0; r < world && bytes > 0; ++r)
                    std::memcpy(hub.result.data() + r * bytes, in[r], bytes);
                break;
            default:
                hub.result.clear();
        }
    };
    if (auto status = meet(m, c->send, c->timeout_ms, failure, last)) return status;
    const char* from =
        hub.result.data() + (c->kind == DDP_COLLECTIVE_REDUCE_SCATTER ? rank * bytes : 0);
    const size_t size = c->kind == DDP_COLLECTIVE_ALLGATHER ? bytes * world
                        : c->kind == DDP_COLLECTIVE_BARRIER ? 0
                                                            : bytes;
    if (size > 0) std::memcpy(c->recv, from, size);
    return meet(m, nullptr, c->timeout_ms, failure, [] {});
}

ddp_status match(void* transport, const void* mine, void* theirs, size_t size, int64_t timeout_ms,
                 int32_t* rank, ddp_backend_failure* failure) {
    auto& m = *static_cast<Member*>(transport);
    Hub& hub = *m.hub;
    auto gather = [&] {
        hub.result.resize(size * static_cast<size_t>(m.world));
        for (size_t r = 0; r < hub.slots.size(); ++r)
            std::memcpy(hub.result.data() + r * size, hub.slots[r], size);
    };
    if (auto status = meet(m, mine, timeout_ms, failure, gather)) return status;
    ddp_status status = DDP_OK;
    for (int r = 0; r < m.world && status == DDP_OK; ++r) {
        const char* other = hub.result.data() + size * static_cast<size_t>(r);
        if (std::memcmp(other, mine, size) == 0) continue;
        std::memcpy(theirs, other, size);
        *rank = r;
        status = DDP_ERROR_MISMATCH;
    }
    if (auto left = meet(m, nullptr, timeout_ms, failure, [] {})) return left;
    return status;
}

template <Mode mode>
const ddp_backend* backend(const char* name) {
    static const ddp_backend instance = {sizeof(ddp_backend),
                                         DDP_BACKEND_ABI_VERSION,
                                         0,
                                         name,
                                         &create<mode>,
                                         &destroy,
                                         &capabilities<mode>,
                                         &abort_all,
                                         &run,
                                         mode == kFused ? &match : nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr};
    return &instance;
}

}  // namespace

void register_thread_backend() {
    static const bool done = [] {
        for (const ddp_backend* b :
             {backend<kFused>("threads"), backend<kPlain>("threads-plain"),
              backend<kSingle>("threads-single"), backend<kCaller>("threads-caller")})
            if (ddp_backend_register(b, nullptr) != DDP_OK) std::abort();
        return true;
    }();
    (void)done;
}
