#include "ddp/elastic.h"

#include <memory>

#include "capi/context.h"
#include "capi/group_config.h"
#include "capi/guard.h"
#include "elastic/job.h"
#include "elastic/shards.h"
#include "launch/environment.h"

using namespace libddp;

struct ddp_elastic {
    ddp_elastic(std::shared_ptr<Store> store, GroupConfig config, const MembershipOptions& options)
        : job(std::move(store), std::move(config), options), group{job.group()} {}

    ElasticJob job;
    ddp_group group;
    Origin origin;
};

namespace {

ElasticJob& job_of(ddp_elastic* elastic) {
    return require(elastic, "elastic")->job;
}

MembershipOptions read_membership(const ddp_elastic_options& o, const GroupConfig& config) {
    if (o.min_world < 0 || o.max_world < 0 || o.settle_ms < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "min_world is ", o.min_world, ", max_world ",
                  o.max_world, " and settle_ms ", o.settle_ms, "; none may be negative");
    if (config.rank >= 0 || config.world >= 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "group->rank and group->world_size must be -1: the ranks that come decide them");
    if (config.round_robin > 1)
        fail_call(DDP_ERROR_UNSUPPORTED, "group->round_robin is ", config.round_robin,
                  "; an elastic job has one group");
    MembershipOptions options;
    const ElasticEnvironment launcher = elastic_environment();
    if (const std::int32_t least = o.min_world > 0 ? o.min_world : launcher.min_world)
        options.min_world = least;
    if (const std::int32_t most = o.max_world > 0 ? o.max_world : launcher.max_world)
        options.max_world = most;
    if (launcher.first_world > 0) options.first_world = launcher.first_world;
    if (o.settle_ms > 0) options.settle_ms = o.settle_ms;
    options.timeout_ms = config.timeout_ms;
    return options;
}

}  // namespace

void ddp_elastic_options_init_sized(ddp_elastic_options* options, size_t size) {
    fill_struct(options, size, ddp_elastic_options{});
}

ddp_status ddp_elastic_create(const ddp_elastic_options* options, ddp_elastic** elastic,
                              ddp_error** error) {
    return guard(error, "ddp_elastic_create", [&] {
        require(elastic, "elastic");
        ddp_elastic_options o;
        ddp_elastic_options_init(&o);
        if (options) read_struct(options, &o, "options");
        const GroupConfig config = read_group_config(o.group);
        const MembershipOptions membership = read_membership(o, config);
        *elastic = new ddp_elastic(find_store(config), config, membership);
    });
}

void ddp_elastic_free(ddp_elastic* elastic) {
    free_handle(elastic);
}

ddp_group* ddp_elastic_group(ddp_elastic* elastic) {
    return elastic ? &elastic->group : nullptr;
}

ddp_status ddp_elastic_add_context(ddp_elastic* elastic, ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_elastic_add_context",
                 [&] { job_of(elastic).add_context(require(context, "context")->impl); });
}

ddp_status ddp_elastic_add_averager(ddp_elastic* elastic, ddp_averager* averager,
                                    ddp_error** error) {
    return guard(error, "ddp_elastic_add_averager",
                 [&] { job_of(elastic).add_averager(require(averager, "averager")->impl); });
}

ddp_status ddp_elastic_add_state(ddp_elastic* elastic, const char* name, void* memory, size_t bytes,
                                 ddp_error** error) {
    return guard(error, "ddp_elastic_add_state", [&] {
        ElasticJob& job = job_of(elastic);
        require(name, "name");
        if (bytes > 0) require(memory, "memory");
        job.add_state({name, static_cast<std::byte*>(memory), bytes});
    });
}

ddp_status ddp_elastic_set_step(ddp_elastic* elastic, int64_t step, ddp_error** error) {
    return guard(error, "ddp_elastic_set_step", [&] { job_of(elastic).set_steps(step); });
}

ddp_status ddp_elastic_begin(ddp_elastic* elastic, ddp_elastic_step* step, ddp_error** error) {
    return guard(error, "ddp_elastic_begin", [&] {
        ElasticJob& job = job_of(elastic);
        const std::size_t size = told_size(step, "step", "set it to sizeof(ddp_elastic_step)");
        job.begin();
        elastic->group.impl = job.group();
        const Roster& roster = job.roster();
        ddp_elastic_step s{};
        s.step = job.steps();
        s.roster = roster.number;
        s.rank = roster.rank;
        s.world_size = static_cast<std::int32_t>(roster.members.size());
        s.fence = roster.fence;
        s.leaving = job.leaving() ? 1 : 0;
        if (job.changed()) {
            s.changed = 1;
            s.joined = roster.joined;
            s.left = static_cast<std::int32_t>(roster.left.size());
        }
        fill_struct(step, size, s);
    });
}

ddp_status ddp_elastic_commit(ddp_elastic* elastic, ddp_error** error) {
    return guard(error, "ddp_elastic_commit", [&] { job_of(elastic).commit(); });
}

ddp_status ddp_elastic_confirm_member(ddp_elastic* elastic, ddp_error** error) {
    return guard(error, "ddp_elastic_confirm_member", [&] { job_of(elastic).confirm_member(); });
}

ddp_status ddp_elastic_keep_shards(ddp_elastic* elastic, ddp_context* context, int64_t step,
                                   ddp_keep where, ddp_error** error) {
    return guard(error, "ddp_elastic_keep_shards", [&] {
        ElasticJob& job = job_of(elastic);
        auto arrays = take_arrays(context);
        if (where != DDP_KEEP_AT_NEIGHBOUR && where != DDP_KEEP_IN_CHECKPOINT)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "where is ", where,
                      "; it must be one of the constants of ddp_keep");
        job.keep_shards(context->impl, std::move(arrays), step, where);
    });
}

ddp_status ddp_elastic_recall_shards(ddp_elastic* elastic, ddp_context* context, int32_t* found,
                                     ddp_error** error) {
    return guard(error, "ddp_elastic_recall_shards", [&] {
        ElasticJob& job = job_of(elastic);
        const auto arrays = take_arrays(context);
        require(found, "found");
        *found = job.recall_shards(context->impl, arrays) ? 1 : 0;
    });
}

ddp_status ddp_elastic_announce_leave(ddp_elastic* elastic, ddp_error** error) {
    return guard(error, "ddp_elastic_announce_leave", [&] { job_of(elastic).announce_leave(); });
}

ddp_status ddp_elastic_leave(ddp_elastic* elastic, ddp_error** error) {
    return guard(error, "ddp_elastic_leave", [&] {
        job_of(elastic).leave();
        elastic->group.impl = elastic->job.group();
    });
}

ddp_status ddp_shard_range(int64_t count, int32_t rank, int32_t world_size, int64_t* begin,
                           int64_t* end, ddp_error** error) {
    return guard(error, "ddp_shard_range", [&] {
        require(begin, "begin");
        require(end, "end");
        if (count < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "count is ", count, "; it may not be negative");
        if (rank < 0 || rank >= world_size)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "rank is ", rank, " and world_size ", world_size,
                      "; a rank is at least 0 and below the world size");
        *begin = shard_begin(count, rank, world_size);
        *end = shard_begin(count, rank + 1, world_size);
    });
}
