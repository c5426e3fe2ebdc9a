#include "ddp/context.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>

#include "capi/context.h"
#include "capi/param.h"
#include "comm/group.h"
#include "ddp/plan.h"
#include "ddp/sparse.h"
#include "launch/vote_page.h"
#include "util/hot_path.h"
#include "util/log.h"
#include "util/options.h"

using namespace libddp;

struct ddp_layout {
    std::vector<std::shared_ptr<const void>> memory;
    Origin origin{};
};

namespace {

constexpr std::uint32_t kContextFlags =
    DDP_CONTEXT_NO_REBUILD | DDP_CONTEXT_NO_INITIAL_BROADCAST | DDP_CONTEXT_NO_BUFFER_BROADCAST |
    DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_STATIC_GRAPH | DDP_CONTEXT_KEEP_LOCAL_UNUSED |
    DDP_CONTEXT_SKIP_UNUSED_BUCKETS | DDP_CONTEXT_JOIN | DDP_CONTEXT_DIVIDE_BY_PRESENT |
    DDP_CONTEXT_STOP_AT_FIRST_JOIN | DDP_CONTEXT_CONSENSUS_ORDER | DDP_CONTEXT_CHECK |
    DDP_CONTEXT_REFUSE_NONFINITE | DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_VERIFY_BUFFERS |
    DDP_CONTEXT_AUTOTUNE | DDP_CONTEXT_ACCUMULATE | DDP_CONTEXT_SHARD | DDP_CONTEXT_VOTES;
constexpr std::uint32_t kMostUses = 1u << 20;
constexpr std::uint64_t kMostCaps = 1u << 20;

// Flags that mean nothing without another are mistakes, not preferences.
void check_flags(std::uint32_t flags) {
    struct Rule {
        std::uint32_t flag, needs;
        const char* text;
    };
    constexpr std::uint32_t unused = DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_STATIC_GRAPH;
    const Rule rules[] = {
        {DDP_CONTEXT_KEEP_LOCAL_UNUSED, unused,
         "DDP_CONTEXT_KEEP_LOCAL_UNUSED needs DDP_CONTEXT_FIND_UNUSED or DDP_CONTEXT_STATIC_GRAPH"},
        {DDP_CONTEXT_ACCUMULATE, unused,
         "DDP_CONTEXT_ACCUMULATE needs DDP_CONTEXT_FIND_UNUSED or DDP_CONTEXT_STATIC_GRAPH"},
        {DDP_CONTEXT_SKIP_UNUSED_BUCKETS, DDP_CONTEXT_FIND_UNUSED,
         "DDP_CONTEXT_SKIP_UNUSED_BUCKETS needs DDP_CONTEXT_FIND_UNUSED"},
        {DDP_CONTEXT_DIVIDE_BY_PRESENT, DDP_CONTEXT_JOIN,
         "DDP_CONTEXT_DIVIDE_BY_PRESENT needs DDP_CONTEXT_JOIN"},
        {DDP_CONTEXT_STOP_AT_FIRST_JOIN, DDP_CONTEXT_JOIN,
         "DDP_CONTEXT_STOP_AT_FIRST_JOIN needs DDP_CONTEXT_JOIN"}};
    for (const Rule& rule : rules)
        if ((flags & rule.flag) && !(flags & rule.needs))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->flags: ", rule.text);
    if ((flags & unused) == unused)
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_FIND_UNUSED and DDP_CONTEXT_STATIC_GRAPH exclude "
                  "each other");
    if ((flags & DDP_CONTEXT_AUTOTUNE) && (flags & DDP_CONTEXT_NO_REBUILD))
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_AUTOTUNE rebuilds the buckets, which "
                  "DDP_CONTEXT_NO_REBUILD forbids");
    constexpr std::pair<std::uint32_t, const char*> not_with_shards[] = {
        {DDP_CONTEXT_AUTOTUNE, "DDP_CONTEXT_AUTOTUNE, which rebuilds the buckets"},
        {DDP_CONTEXT_CONSENSUS_ORDER, "DDP_CONTEXT_CONSENSUS_ORDER, which rebuilds the buckets"}};
    for (const auto& [flag, text] : not_with_shards)
        if ((flags & DDP_CONTEXT_SHARD) && (flags & flag))
            fail_call(DDP_ERROR_UNSUPPORTED,
                      "options->flags: DDP_CONTEXT_SHARD does not work with ", text);
    constexpr std::uint32_t nonfinite = DDP_CONTEXT_REFUSE_NONFINITE | DDP_CONTEXT_SKIP_NONFINITE;
    if ((flags & nonfinite) == nonfinite)
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_REFUSE_NONFINITE and DDP_CONTEXT_SKIP_NONFINITE "
                  "exclude each other");
}

std::vector<std::size_t> read_caps(const ddp_context_options& o, const Group& group) {
    if (o.bucket_cap_count > 0) {
        if (o.flags & DDP_CONTEXT_AUTOTUNE)
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "options->flags: DDP_CONTEXT_AUTOTUNE looks for one cap, but "
                      "options->bucket_caps gives a list");
        if (o.bucket_cap_count > kMostCaps)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->bucket_cap_count is ",
                      o.bucket_cap_count, "; that is more than is plausible");
        require(o.bucket_caps, "options->bucket_caps");
        std::vector<std::size_t> caps(o.bucket_caps, o.bucket_caps + o.bucket_cap_count);
        for (std::size_t i = 0; i < caps.size(); ++i)
            if (caps[i] == 0)
                fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->bucket_caps[", i, "] is 0");
        return caps;
    }
    const std::size_t usual_cap =
        group.reduces_at_once() ? ReducerOptions::kCachedCap : ReducerOptions::kUsualCap;
    return make_caps(o.first_bucket_cap_bytes,
                     o.bucket_cap_bytes != 0 ? o.bucket_cap_bytes : usual_cap);
}

// Once in a process: a program may make many.
void warn_of_lone_group(std::int32_t job_world) {
    static std::atomic_flag told = ATOMIC_FLAG_INIT;
    if (told.test_and_set()) return;
    log(LogLevel::kWarn, "a context is on a group of 1 rank, and the launcher's job has ",
        job_world,
        ": nothing is averaged. The program gave the group rank 0 and world size 1; leave both out "
        "to train with all ranks of the job. To train alone without this warning, get the group "
        "from ddp_group_split");
}

constexpr std::int64_t kCheckInterval = 10;

// The check that DDP_DEBUG asks for: its interval (0: that of the options), if it asks for one.
std::optional<std::int64_t> check_of_environment() {
    const std::string text = text_or(std::getenv("DDP_DEBUG"), "");
    if (text.empty() || text == "off" || text == "0") return std::nullopt;
    if (text == "check") return 0;
    const std::string with_interval = "check=";
    if (text.rfind(with_interval, 0) != 0)
        fail_call(
            DDP_ERROR_INVALID_ARGUMENT, "the environment variable DDP_DEBUG is '", text,
            "'; it is check, check=N (values are compared every N steps, -1 for never) or off");
    return parse_int(text.substr(with_interval.size()), -1, INT64_MAX, "DDP_DEBUG=check");
}

void read_check(const ddp_context_options& o, ReducerOptions& reducer) {
    if (o.verify_interval < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->verify_interval is ", o.verify_interval,
                  "; it must be positive, or 0 (never)");
    reducer.verify_interval = o.verify_interval;
    reducer.verify_buffers = (o.flags & DDP_CONTEXT_VERIFY_BUFFERS) != 0;
    if (reducer.verify_buffers && o.verify_interval == 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_VERIFY_BUFFERS needs options->verify_interval");
    if (o.flags & DDP_CONTEXT_REFUSE_NONFINITE) reducer.nonfinite = Nonfinite::kRefuse;
    if (o.flags & DDP_CONTEXT_SKIP_NONFINITE) reducer.nonfinite = Nonfinite::kSkip;
    if (o.check_interval < -1)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->check_interval is ", o.check_interval,
                  "; it must be positive, 0 (for ", kCheckInterval, ") or -1 (never)");
    const auto asked = check_of_environment();
    reducer.check = asked || (o.flags & DDP_CONTEXT_CHECK) != 0;
    if (!reducer.check) return;
    const std::int64_t interval = asked && *asked != 0 ? *asked : o.check_interval;
    reducer.check_interval = interval != 0 ? interval : kCheckInterval;
}

ContextOptions read_options(const ddp_context_options* options, const Group& group) {
    ddp_context_options o;
    ddp_context_options_init(&o);
    if (options) read_struct(options, &o, "options");
    require_flags(o.flags, kContextFlags);
    check_flags(o.flags);
    if (o.reduction < DDP_REDUCTION_MEAN || o.reduction > DDP_REDUCTION_WEIGHTED_MEAN)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->reduction ", o.reduction, " is unknown");
    if (o.reduction == DDP_REDUCTION_SUM && (o.flags & DDP_CONTEXT_DIVIDE_BY_PRESENT))
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_DIVIDE_BY_PRESENT divides, but options->reduction "
                  "is DDP_REDUCTION_SUM");
    if (o.reduction == DDP_REDUCTION_SUM && (o.flags & DDP_CONTEXT_ACCUMULATE))
        fail_call(DDP_ERROR_INVALID_ARGUMENT,
                  "options->flags: DDP_CONTEXT_ACCUMULATE keeps a mean of earlier steps, but "
                  "options->reduction is DDP_REDUCTION_SUM, which would add it once for each rank");
    if (o.rebuild_interval < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->rebuild_interval is ", o.rebuild_interval,
                  "; it must not be negative");
    if (o.rebuild_interval > 0 && (o.flags & DDP_CONTEXT_SHARD))
        fail_call(DDP_ERROR_UNSUPPORTED, "options->rebuild_interval is ", o.rebuild_interval,
                  "; with DDP_CONTEXT_SHARD buckets stay as they are");
    auto has = [&o](std::uint32_t flag) { return (o.flags & flag) != 0; };
    ContextOptions result;
    auto& reducer = result.reducer;
    reducer.caps = read_caps(o, group);
    reducer.tune_caps = has(DDP_CONTEXT_AUTOTUNE);
    reducer.first_cap = o.first_bucket_cap_bytes;
    reducer.mean = o.reduction != DDP_REDUCTION_SUM;
    reducer.shard = has(DDP_CONTEXT_SHARD);
    reducer.rebuild = !has(DDP_CONTEXT_NO_REBUILD) && !reducer.shard;
    reducer.accumulate = has(DDP_CONTEXT_ACCUMULATE);
    reducer.consensus_order = has(DDP_CONTEXT_CONSENSUS_ORDER);
    reducer.rebuild_interval = o.rebuild_interval;
    reducer.find_unused = has(DDP_CONTEXT_FIND_UNUSED);
    reducer.static_graph = has(DDP_CONTEXT_STATIC_GRAPH);
    reducer.keep_local_unused = has(DDP_CONTEXT_KEEP_LOCAL_UNUSED);
    reducer.skip_unused = has(DDP_CONTEXT_SKIP_UNUSED_BUCKETS);
    reducer.votes = has(DDP_CONTEXT_VOTES);
    read_check(o, reducer);
    // A launcher's memory that this rank does not see is an error here, and not in ddp_commit, where
    // the other ranks would wait.
    if (reducer.votes) VoteListener();
    result.initial_broadcast = !has(DDP_CONTEXT_NO_INITIAL_BROADCAST);
    result.buffer_broadcast = !has(DDP_CONTEXT_NO_BUFFER_BROADCAST);
    result.weighted = o.reduction == DDP_REDUCTION_WEIGHTED_MEAN;
    result.join = has(DDP_CONTEXT_JOIN);
    result.divide_by_present = has(DDP_CONTEXT_DIVIDE_BY_PRESENT);
    result.stop_at_first_join = has(DDP_CONTEXT_STOP_AT_FIRST_JOIN);
    reducer.needs_begin = result.weighted || result.join;
    return result;
}

}  // namespace

Param libddp::read_param(const ddp_param_desc* desc, std::uint32_t flags) {
    ddp_param_desc d;
    ddp_param_desc_init(&d);
    read_struct(desc, &d, "desc");
    require(d.name, "desc->name");
    require_flags(d.flags, flags);
    if (d.uses > kMostUses || (d.uses > 1 && flags == 0))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", d.name, "': uses is ", d.uses,
                  flags == 0 ? "; a buffer is not announced" : "; that is more than is plausible");
    if (d.grad_dtype != 0 && flags == 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", d.name, "': grad_dtype is ",
                  dtype_name(d.grad_dtype), "; a buffer has no gradient");
    if (d.ndim < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", d.name, "': ndim is ", d.ndim,
                  "; it must not be negative");
    if (d.ndim > 16)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", d.name, "': ndim is ", d.ndim,
                  "; at most 16 are allowed");
    if (d.ndim > 0) require(d.shape, "desc->shape");
    Param param;
    param.name = d.name;
    if (d.ndim > 0) param.shape.assign(d.shape, d.shape + d.ndim);
    param.dtype = d.dtype;
    param.gradient.dtype = d.grad_dtype;
    param.device = d.device;
    param.data = d.data;
    const bool in_place = (d.flags & DDP_PARAM_IN_PLACE) != 0;
    (in_place ? param.in_place.memory : param.grad) = d.grad;
    param.uses = d.uses > 1 ? static_cast<std::int32_t>(d.uses) : 1;
    param.ignored = (d.flags & DDP_PARAM_IGNORED) != 0;
    param.delayed = (d.flags & DDP_PARAM_DELAYED) != 0;
    param.sparse = (d.flags & DDP_PARAM_SPARSE) != 0;
    param.factored = (d.flags & DDP_PARAM_FACTORED) != 0;
    param.in_place.asked = in_place;
    param.in_place.shared = in_place && is_of_mem_alloc(d.grad);
    return param;
}

void ddp_context_options_init_sized(ddp_context_options* options, size_t size) {
    fill_struct(options, size, ddp_context_options{});
}

ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options,
                              ddp_context** context, ddp_error** error) {
    return guard(error, "ddp_context_create", [&] {
        require(group, "group")->impl->require_unbroken();
        require(context, "context");
        *context = new ddp_context{Context(group->impl, read_options(options, *group->impl))};
        if (group->job_world > 1) warn_of_lone_group(group->job_world);
    });
}

void ddp_context_free(ddp_context* context) {
    free_handle(context);
}

ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error) {
    return guard(error, "ddp_context_abort", [&] {
        Group& group = *context_of(context).group();
        const std::string why = text_or(reason, "");
        group.break_everywhere(
            {DDP_ERROR_ABORTED,
             str("rank ", group.rank(), " called ddp_context_abort", why.empty() ? "" : ": ", why),
             group.rank()});
    });
}

void ddp_param_desc_init_sized(ddp_param_desc* desc, size_t size) {
    ddp_param_desc defaults{};
    defaults.dtype = DDP_F32;
    fill_struct(desc, size, defaults);
}

ddp_status ddp_register_param(ddp_context* context, const ddp_param_desc* desc, ddp_param* param,
                              ddp_error** error) {
    return guard(error, "ddp_register_param", [&] {
        Context& c = context_of(context);
        require(param, "param");
        std::vector<Param> params;
        params.push_back(read_param(desc, kParamFlags));
        *param = c.register_params(std::move(params)).front();
    });
}

ddp_status ddp_register_buffer(ddp_context* context, const ddp_param_desc* desc,
                               ddp_error** error) {
    return guard(error, "ddp_register_buffer",
                 [&] { context_of(context).building().table.add_buffer(read_param(desc, 0)); });
}

ddp_status ddp_commit(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_commit", [&] { context_of(context).commit(); });
}

ddp_status ddp_grad_view(ddp_context* context, ddp_param param, void** view, ddp_error** error) {
    return guard(error, "ddp_grad_view", [&] {
        require(view, "view");
        *view = require_place(context_of(context), param).parts().layout->view(param);
    });
}

ddp_status ddp_layout_hold(ddp_context* context, ddp_layout** layout, ddp_error** error) {
    return guard(error, "ddp_layout_hold", [&] {
        Context& c = context_of(context);
        require(layout, "layout");
        *layout = new ddp_layout{c.committed().parts().layout->view_memory()};
    });
}

void ddp_layout_free(ddp_layout* layout) {
    free_handle(layout);
}

int64_t ddp_layout_generation(const ddp_context* context) {
    if (!context) return -1;
    const Reducer* reducer = context->impl.reducer();
    return reducer ? reducer->layouts() : 0;
}
int32_t ddp_context_bucket_count(const ddp_context* context) {
    const Reducer* reducer = context ? context->impl.reducer() : nullptr;
    return reducer ? static_cast<std::int32_t>(reducer->parts().layout->size()) : -1;
}
int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param) {
    const Reducer* reducer = context ? context->impl.reducer() : nullptr;
    if (!reducer || param < 0 || param >= context->impl.model().table.size()) return -1;
    return reducer->parts().gradients[param].bucket;
}

ddp_status ddp_step_begin(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_step_begin", [&] { context_of(context).step_begin(); });
}

ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error) {
    return guard(error, "ddp_set_sync", [&] { context_of(context).set_sync(sync != 0); });
}

LIBDDP_HOT_PATH ddp_status ddp_grad_ready(ddp_context* context, ddp_param param,
                                          ddp_error** error) {
    return guard<Waits::kRarely>(error, "ddp_grad_ready", [&] {
        context_of(context).step_call([&](Reducer& r) { r.arrivals().grad_ready(param); });
    });
}

ddp_status ddp_put(ddp_context* context, ddp_param param, const void* gradient, uint32_t flags,
                   ddp_error** error) {
    return guard(error, "ddp_put", [&] {
        Context& c = context_of(context);
        require_flags(flags, DDP_PUT_ADD);
        c.step_call(
            [&](Reducer& r) { r.arrivals().put(param, gradient, (flags & DDP_PUT_ADD) != 0); });
    });
}

ddp_status ddp_grad_ready_sparse(ddp_context* context, ddp_param param, const int64_t* indices,
                                 const void* values, size_t count, ddp_error** error) {
    return guard(error, "ddp_grad_ready_sparse", [&] {
        Context& c = context_of(context);
        if (count > 0) require(indices, "indices");
        if (count > 0) require(values, "values");
        c.step_call(
            [&](Reducer& r) { r.arrivals().grad_ready_sparse(param, indices, values, count); });
    });
}

ddp_status ddp_grad_ready_factors(ddp_context* context, ddp_param param, const void* left,
                                  const void* right, size_t rows, ddp_error** error) {
    return guard(error, "ddp_grad_ready_factors", [&] {
        Context& c = context_of(context);
        if (rows > 0) require(left, "left");
        if (rows > 0) require(right, "right");
        c.step_call([&](Reducer& r) { r.arrivals().grad_ready_factors(param, left, right, rows); });
    });
}

ddp_status ddp_sparse_gradient(ddp_context* context, ddp_param param, const int64_t** indices,
                               const void** values, size_t* count, ddp_error** error) {
    return guard(error, "ddp_sparse_gradient", [&] {
        Context& c = context_of(context);
        Reducer& reducer = c.committed();
        c.model().table.require(param);
        if (!c.model().table[param].sparse)
            throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                             str("'", c.model().table[param].name,
                                 "' was not registered with DDP_PARAM_SPARSE"),
                             -1, param});
        const SparseRows& rows = reducer.parts().gradients.rows().result(param);
        if (indices) *indices = rows.indices.data();
        if (values) *values = rows.values.data();
        if (count) *count = rows.indices.size();
    });
}

ddp_status ddp_finalize(ddp_context* context, ddp_error** error) {
    return step_call(context, error, "ddp_finalize", [](Reducer& r) { r.results().finalize(); });
}

ddp_status ddp_step_discard(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_step_discard", [&] { context_of(context).discard_step(); });
}

ddp_status ddp_context_set_group(ddp_context* context, ddp_group* group, ddp_error** error) {
    return guard(error, "ddp_context_set_group", [&] {
        Context& c = context_of(context);
        c.set_group(require(group, "group")->impl);
    });
}
