#include "ddp/stats.h"

#include "capi/context.h"

using namespace libddp;

namespace {

void add_times(ddp_stats& s, const StepClock& clock) {
    s.backward_ns = clock.last().backward_ns;
    s.comm_ns = clock.last().comm_ns;
    s.overlap_ns = clock.last().overlap_ns;
    s.wait_ns = clock.last().wait_ns;
    s.total_backward_ns = clock.total().backward_ns;
    s.total_comm_ns = clock.total().comm_ns;
    s.total_overlap_ns = clock.total().overlap_ns;
    s.total_wait_ns = clock.total().wait_ns;
}

void add_params(ddp_stats& s, const ParamTable& table, const Totals& totals) {
    for (std::int32_t id = 0; id < table.size(); ++id) {
        const Param& p = table[id];
        if (p.ignored) continue;
        if (!p.sparse) s.param_bytes += p.gradient.bytes;
        if (totals.synced_steps == 0 || totals.used[static_cast<std::size_t>(id)] != 0) continue;
        ++s.unused_params;
        if (!p.sparse) s.unused_bytes += p.gradient.bytes;
    }
}

// As many elements as fit; the count tells how many there are.
template <class Target, class Source, class Read>
void give_list(Target* target, size_t capacity, size_t* count, const Source& source, Read read,
               const char* name) {
    require(count, "count");
    if (capacity > 0) require(target, name);
    for (std::size_t i = 0; i < std::min(capacity, source.size()); ++i) target[i] = read(source[i]);
    *count = source.size();
}

}  // namespace

ddp_status ddp_stats_get(ddp_context* context, ddp_stats* stats, ddp_error** error) {
    return guard(error, "ddp_stats_get", [&] {
        Context& c = context_of(context);
        const std::size_t size = told_size(stats, "stats", "set it to sizeof(ddp_stats)");
        ddp_stats s{};
        s.param_count = c.model().table.size();
        s.last_error = c.last_error();
        s.averaged_bytes = c.model().averages->sent.load(std::memory_order_relaxed);
        if (const Reducer* reducer = c.reducer()) {
            const ReducerParts& parts = reducer->parts();
            s.steps = parts.totals.steps;
            s.synced_steps = parts.totals.synced_steps;
            s.rebuilds = parts.totals.rebuilds;
            s.bucket_count = static_cast<std::int32_t>(parts.layout->size());
            s.unsent_buckets = parts.totals.unsent_buckets;
            s.sent_bytes = parts.totals.sent_bytes;
            s.copied_bytes = parts.gradients.copied_bytes() + parts.hook.copied_bytes();
            s.bucket_cap_bytes = parts.planner.cap();
            s.tuning = parts.planner.tuning(*parts.group, *parts.hook.hook()) ? 1 : 0;
            s.hook_bytes_in = parts.hook.bytes_in();
            s.hook_bytes_out = parts.hook.bytes_out();
            add_params(s, c.model().table, parts.totals);
            add_times(s, parts.totals.clock);
        }
        fill_struct(stats, size, s);
    });
}

ddp_status ddp_stats_bucket_sizes(ddp_context* context, int32_t initial, uint64_t* bytes,
                                  size_t capacity, size_t* count, ddp_error** error) {
    return guard(error, "ddp_stats_bucket_sizes", [&] {
        const Reducer& reducer = context_of(context).committed();
        const BucketPlan& plan =
            initial != 0 ? reducer.parts().planner.first() : reducer.parts().layout->plan();
        give_list(
            bytes, capacity, count, plan.buckets, [](const PlanBucket& b) { return b.content; },
            "bytes");
    });
}

ddp_status ddp_stats_ready_order(ddp_context* context, ddp_param* params, size_t capacity,
                                 size_t* count, ddp_error** error) {
    return guard(error, "ddp_stats_ready_order", [&] {
        const Reducer& reducer = context_of(context).committed();
        give_list(
            params, capacity, count, reducer.parts().planner.order().own(),
            [](std::int32_t id) { return id; }, "params");
    });
}
