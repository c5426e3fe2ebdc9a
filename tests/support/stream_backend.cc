#include "support/stream_backend.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ddp/backend.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/fake_device/fake_device.h"

namespace {

std::atomic<ddp_status> failing{DDP_OK};
std::atomic<bool> holding{false};
std::atomic<long> runs{0}, runs_on_callers{0};
std::mutex on_abort_mutex;
std::function<void(int)> on_abort;

// Such threads block every signal; those of the tests block none.
bool on_a_thread_of_libddp() {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    return sigismember(&blocked, SIGTERM) == 1;
}

// Where the ranks of one group meet, each on one stream.
struct Hub {
    explicit Hub(int world) : inputs(static_cast<size_t>(world)) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<const void*> inputs;
    int arrived = 0;
    long round = 0;
    bool aborted = false;
    std::vector<char> result;

    // False if the group is aborted. The last to come runs `last`.
    template <class Last>
    bool meet(int rank, const void* mine, Last last) {
        std::unique_lock lock(mutex);
        if (aborted) return false;
        inputs[static_cast<size_t>(rank)] = mine;
        const long now = round;
        if (++arrived == static_cast<int>(inputs.size())) {
            last();
            arrived = 0;
            ++round;
            changed.notify_all();
            return true;
        }
        changed.wait(lock, [&] { return round != now || aborted; });
        return round != now;
    }
};

// A rank may have several devices, whose streams run as they like: what it uses first meets what
// the others use first.
struct Hubs {
    explicit Hubs(int world) : all{Hub(world), Hub(world)} {}
    std::array<Hub, 2> all;
};

struct Member {
    std::shared_ptr<Hubs> hubs;
    int rank = 0, world = 1;
    std::vector<int> devices;  // in the order of their first use

    Hub& hub(int device) {
        auto known = std::find(devices.begin(), devices.end(), device);
        if (known == devices.end()) known = devices.insert(known, device);
        return hubs->all[static_cast<size_t>(known - devices.begin())];
    }
};

ddp_status create(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure) {
    auto member = std::make_unique<Member>();
    member->rank = host->rank;
    member->world = host->world_size;
    if (host->rank == 0) {
        member->hubs = std::make_shared<Hubs>(host->world_size);
        auto* shared = new std::shared_ptr<Hubs>(member->hubs);
        char text[32];
        std::snprintf(text, sizeof text, "%p", static_cast<void*>(shared));
        if (host->world_size > 1)
            if (auto status =
                    host->store_set(host->handle, "hub", text, std::strlen(text), failure))
                return status;
        member->hubs->all[0].meet(0, nullptr, [] {});
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
        member->hubs = *static_cast<std::shared_ptr<Hubs>*>(shared);
        member->hubs->all[0].meet(host->rank, nullptr, [] {});
    }
    *transport = member.release();
    return DDP_OK;
}

void destroy(void* transport) {
    delete static_cast<Member*>(transport);
}

uint32_t capabilities(void*) {
    return DDP_BACKEND_CUDA | DDP_BACKEND_DEVICE_ONLY | DDP_BACKEND_FUSES_SCALE |
           DDP_BACKEND_CAPTURES;
}

void abort_all(void* transport) {
    std::function<void(int)> call;
    {
        const std::lock_guard lock(on_abort_mutex);
        call = on_abort;
    }
    if (call) call(static_cast<Member*>(transport)->rank);
    for (Hub& hub : static_cast<Member*>(transport)->hubs->all) {
        const std::lock_guard lock(hub.mutex);
        hub.aborted = true;
        hub.changed.notify_all();
    }
}

void carry_out(int rank, Hub& hub, const ddp_collective& c) {
    const size_t item = libddp::dtype_size(c.dtype), bytes = item * c.count;
    const auto last = [&] {
        switch (c.kind) {
            case DDP_COLLECTIVE_ALLREDUCE:
                hub.result.resize(bytes);
                libddp::cpu::reduce(hub.result.data(), hub.inputs.data(), hub.inputs.size(),
                                    c.count, c.dtype, c.op, c.scale);
                break;
            case DDP_COLLECTIVE_BROADCAST: {
                const auto* root =
                    static_cast<const char*>(hub.inputs[static_cast<size_t>(c.root)]);
                hub.result.assign(root, root + bytes);
                break;
            }
            default:
                hub.result.clear();
                for (const void* input : hub.inputs) {
                    const auto* begin = static_cast<const char*>(input);
                    hub.result.insert(hub.result.end(), begin, begin + bytes);
                }
        }
    };
    if (!hub.meet(rank, fake::alias(c.send), last)) return;
    // Ranks that disagree are told behind the operation, and may not write beyond their memory.
    const size_t own = c.kind == DDP_COLLECTIVE_ALLGATHER ? bytes * hub.inputs.size() : bytes;
    std::memcpy(fake::alias(c.recv), hub.result.data(), std::min(own, hub.result.size()));
    hub.meet(rank, nullptr, [] {});
}

ddp_status run(void* transport, const ddp_collective* c, ddp_backend_failure* failure) {
    const bool known = c->kind == DDP_COLLECTIVE_ALLREDUCE || c->kind == DDP_COLLECTIVE_BROADCAST ||
                       c->kind == DDP_COLLECTIVE_ALLGATHER;
    if (c->device.kind != DDP_DEVICE_CUDA || !c->stream || !known) {
        std::snprintf(failure->message, sizeof failure->message,
                      "not a collective for this backend");
        return DDP_ERROR_INTERNAL;
    }
    if (!on_a_thread_of_libddp()) ++runs_on_callers;
    ++runs;
    auto& m = *static_cast<Member*>(transport);
    if (holding) {
        Hub& hub = m.hub(c->device.index);
        std::unique_lock lock(hub.mutex);
        while (holding && !hub.aborted) hub.changed.wait_for(lock, std::chrono::milliseconds(10));
    }
    fake::launch(c->device.index, c->stream,
                 [hubs = m.hubs, rank = m.rank, hub = &m.hub(c->device.index), operation = *c] {
                     carry_out(rank, *hub, operation);
                 });
    return DDP_OK;
}

ddp_status check(void* transport, ddp_backend_failure* failure) {
    for (Hub& hub : static_cast<Member*>(transport)->hubs->all) {
        const std::lock_guard lock(hub.mutex);
        if (!hub.aborted) continue;
        std::snprintf(failure->message, sizeof failure->message, "a rank has aborted");
        return DDP_ERROR_UNAVAILABLE;
    }
    const ddp_status status = failing;
    if (status != DDP_OK)
        std::snprintf(failure->message, sizeof failure->message, "the test pulled the plug");
    return status;
}

}  // namespace

void register_stream_backend() {
    static const ddp_backend backend = {sizeof(ddp_backend),
                                        DDP_BACKEND_ABI_VERSION,
                                        0,
                                        "streams",
                                        create,
                                        destroy,
                                        capabilities,
                                        abort_all,
                                        run,
                                        nullptr,
                                        nullptr,
                                        nullptr,
                                        nullptr,
                                        check,
                                        nullptr};
    static const bool done = [] {
        if (ddp_backend_register(&backend, nullptr) != DDP_OK) std::abort();
        return true;
    }();
    (void)done;
}

void fail_stream_backend(ddp_status status) {
    failing = status;
}

void on_stream_backend_abort(std::function<void(int rank)> call) {
    const std::lock_guard lock(on_abort_mutex);
    on_abort = std::move(call);
}

void hold_stream_backend(bool held) {
    holding = held;
}

long stream_backend_runs() {
    return runs;
}

long stream_backend_runs_on_callers() {
    return runs_on_callers;
}
