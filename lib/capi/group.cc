#include "ddp/group.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "capi/collective.h"
#include "capi/group_config.h"
#include "capi/guard.h"
#include "capi/param.h"
#include "comm/round_robin.h"
#include "ddp/in_place.h"
#include "ddp/round_robin.h"
#include "device/device.h"
#include "launch/environment.h"
#include "rendezvous/store.h"
#include "util/deadline.h"
#include "util/mutex.h"

using namespace libddp;

namespace {

Group& group_of(ddp_group* group) {
    return *require(group, "group")->impl;
}

// Device memory is reduced in the order of a bucket's stream, which only a hook and its
// continuations have.
void place(Collective& collective, const OpTag& tag) {
    collective.device = device_of(collective.recv ? collective.recv : collective.send);
    const ddp_device from = collective.send ? device_of(collective.send) : collective.device;
    if (!same_device(from, collective.device))
        fail(DDP_ERROR_INVALID_ARGUMENT, "send is memory of ", device_name(from), " and recv of ",
             device_name(collective.device), "; both must be in one place");
    if (is_cpu(collective.device)) return;
    const StreamPtr& stream = tag.order.stream;
    if (!stream || !same_device(stream->device(), collective.device))
        fail(DDP_ERROR_UNSUPPORTED, "the memory is on ", device_name(collective.device),
             stream ? ", the bucket on " : "", stream ? device_name(stream->device()) : "",
             ": collectives on device memory are for communication hooks, on the device of their "
             "bucket");
}

// The memory that ddp_mem_alloc gave out, and the group's hold on it.
class Allocations {
public:
    void* add(std::shared_ptr<std::byte> memory, std::size_t bytes) {
        void* key = memory.get();
        const Lock lock(mutex_);
        held_.emplace(key, Block{std::move(memory), bytes, {}});
        return key;
    }
    std::shared_ptr<std::byte> take(void* key) {
        const Lock lock(mutex_);
        auto node = held_.extract(key);
        if (node.empty())
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "this memory is not of ddp_mem_alloc, or was freed before");
        Block& block = node.mapped();
        // The parent's memory is not given back: others may share it.
        if (block.origin.inherited()) return *new auto(std::move(block.memory));  // NOLINT
        return std::move(block.memory);
    }
    bool hold(const void* address) {
        const Lock lock(mutex_);
        auto after = held_.upper_bound(const_cast<void*>(address));
        if (after == held_.begin()) return false;
        const Block& block = std::prev(after)->second;
        return static_cast<const std::byte*>(address) < block.memory.get() + block.bytes;
    }

private:
    struct Block {
        std::shared_ptr<std::byte> memory;
        std::size_t bytes;
        Origin origin;
    };

    Mutex mutex_;
    std::map<void*, Block> held_ DDP_GUARDED_BY(mutex_);
};

Allocations& allocations() {
    // Never destroyed: what a program has not freed stays valid until its end.
    static Allocations& instance = *new Allocations;
    return instance;
}

// 1: no launcher tells.
std::int32_t world_around() {
    try {
        return discover_environment().world_size;
    } catch (const Error&) {
        return 1;
    }
}

}  // namespace

void libddp::start_collective(ddp_group* group, Collective collective, ddp_work** out) {
    Group& g = group_of(group);
    const OpTag& tag = current_tag();
    place(collective, tag);
    if (out)
        *out = new ddp_work{g.submit(collective, tag)};
    else
        g.perform(collective, tag);
}

bool libddp::is_of_mem_alloc(const void* memory) {
    return allocations().hold(memory);
}

GroupConfig libddp::read_group_config(const ddp_group_options* options) {
    ddp_group_options o;
    ddp_group_options_init(&o);
    if (options) read_struct(options, &o, "options");
    // Not properties of the group: ranks need not agree on them, and what is made of the group does
    // not inherit them.
    constexpr std::uint32_t kOfThisRank = DDP_GROUP_OR_ALONE | DDP_GROUP_INSECURE;
    require_flags(o.flags, DDP_GROUP_DETERMINISTIC | DDP_GROUP_NO_MATCH_CHECK | kOfThisRank);
    GroupConfig config;
    config.rank = o.rank;
    config.world = o.world_size;
    config.init_method = text_or(o.init_method, "env://");
    config.backend = text_or(o.backend, "auto");
    config.backend_options = text_or(o.backend_options, "");
    config.timeout_ms =
        o.timeout_ms != 0 ? std::min(o.timeout_ms, kLongestWaitMs) : default_timeout_ms();
    config.name = text_or(o.group_name, "world");
    if (o.store) config.store = require(o.store, "options->store")->impl;
    if (o.secret) config.secret = o.secret;
    config.flags = o.flags & ~kOfThisRank;
    config.or_alone = (o.flags & DDP_GROUP_OR_ALONE) != 0;
    config.insecure = (o.flags & DDP_GROUP_INSECURE) != 0;
    config.round_robin = o.round_robin;
    return config;
}

void ddp_group_options_init_sized(ddp_group_options* options, size_t size) {
    ddp_group_options defaults{};
    defaults.rank = -1;
    defaults.world_size = -1;
    fill_struct(options, size, defaults);
}

ddp_status ddp_environment_get(ddp_environment* environment, ddp_error** error) {
    return guard(error, "ddp_environment_get", [&] {
        const std::size_t size =
            told_size(environment, "environment", "set it to sizeof(ddp_environment)");
        JobEnvironment job = discover_environment();
        ddp_environment found{};
        found.rank = job.rank;
        found.world_size = job.world_size;
        found.local_rank = job.local_rank;
        found.local_world_size = job.local_world_size;
        found.restart = job.restart;
        std::strncpy(found.launcher, job.launcher.c_str(), sizeof found.launcher - 1);
        // A part of the launcher's name would lack its end.
        const std::size_t named = offsetof(ddp_environment, launcher);
        fill_struct(environment, size < sizeof found ? std::min(size, named) : size, found);
        environment->struct_size = size;
    });
}

ddp_status ddp_group_create(const ddp_group_options* options, ddp_group** group,
                            ddp_error** error) {
    return guard(error, "ddp_group_create", [&] {
        require(group, "group");
        std::shared_ptr<Group> made = create_group(read_group_config(options));
        const std::int32_t job_world = made->world() == 1 ? world_around() : 1;
        *group = new ddp_group{std::move(made), job_world};
    });
}

ddp_status ddp_group_split(ddp_group* group, int32_t color, int32_t key, ddp_group** out,
                           ddp_error** error) {
    return guard(error, "ddp_group_split", [&] {
        require(out, "out");
        auto part = group_of(group).split(color, key, current_tag());
        *out = part ? new ddp_group{std::move(part)} : nullptr;
    });
}

ddp_status ddp_group_round_robin(ddp_group* const* groups, size_t n, ddp_group** out,
                                 ddp_error** error) {
    return guard(error, "ddp_group_round_robin", [&] {
        require(out, "out");
        if (n > 0) require(groups, "groups");
        std::vector<std::shared_ptr<Group>> all;
        for (std::size_t i = 0; i < n; ++i)
            all.push_back(require(groups[i], str("groups[", i, "]").c_str())->impl);
        *out = new ddp_group{compose_round_robin(all, current_tag())};
    });
}

void ddp_group_free(ddp_group* group) {
    free_handle(group);
}

ddp_status ddp_group_abort(ddp_group* group, const char* reason, ddp_error** error) {
    return guard(error, "ddp_group_abort", [&] {
        Group& g = group_of(group);
        g.break_everywhere({DDP_ERROR_ABORTED,
                            str("rank ", g.rank(), " called ddp_group_abort", reason ? ": " : "",
                                text_or(reason, "")),
                            g.rank()});
    });
}

int32_t ddp_group_rank(const ddp_group* group) {
    return group ? group->impl->rank() : -1;
}
int32_t ddp_group_world_size(const ddp_group* group) {
    return group ? group->impl->world() : -1;
}
const char* ddp_group_backend(const ddp_group* group) {
    return group ? group->impl->backend_name() : nullptr;
}

ddp_status ddp_group_status(ddp_group* group, ddp_error** error) {
    return guard(error, "ddp_group_status", [&] { group_of(group).check(); });
}

ddp_status ddp_group_store(ddp_group* group, ddp_store** store, ddp_error** error) {
    return guard(error, "ddp_group_store", [&] {
        require(store, "store");
        *store = new ddp_store{group_of(group).store()};
    });
}

ddp_status ddp_mem_alloc(ddp_group* group, size_t bytes, void** memory, ddp_error** error) {
    return guard(error, "ddp_mem_alloc", [&] {
        require(memory, "memory");
        *memory = allocations().add(
            group_of(group).link(0)->allocate(std::max<std::size_t>(1, bytes)), bytes);
    });
}

ddp_status ddp_mem_free(void* memory, ddp_error** error) {
    return guard(error, "ddp_mem_free", [&] {
        if (memory) allocations().take(memory);
    });
}

ddp_status ddp_allreduce(ddp_group* group, const void* send, void* recv, size_t count,
                         ddp_dtype dtype, ddp_reduce_op op, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_allreduce", [&] {
        Collective c{DDP_COLLECTIVE_ALLREDUCE, send, recv, count, dtype, op};
        start_collective(group, c, work);
    });
}

ddp_status ddp_broadcast(ddp_group* group, void* buffer, size_t count, ddp_dtype dtype,
                         int32_t root, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_broadcast", [&] {
        Collective c{DDP_COLLECTIVE_BROADCAST, nullptr, buffer, count, dtype, DDP_SUM, root};
        start_collective(group, c, work);
    });
}

ddp_status ddp_allgather(ddp_group* group, const void* send, void* recv, size_t count,
                         ddp_dtype dtype, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_allgather", [&] {
        Collective c{DDP_COLLECTIVE_ALLGATHER, send, recv, count, dtype};
        start_collective(group, c, work);
    });
}

ddp_status ddp_reduce_scatter(ddp_group* group, const void* send, void* recv, size_t count,
                              ddp_dtype dtype, ddp_reduce_op op, ddp_work** work,
                              ddp_error** error) {
    return guard(error, "ddp_reduce_scatter", [&] {
        Collective c{DDP_COLLECTIVE_REDUCE_SCATTER, send, recv, count, dtype, op};
        start_collective(group, c, work);
    });
}

ddp_status ddp_barrier(ddp_group* group, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_barrier", [&] { start_collective(group, {}, work); });
}
