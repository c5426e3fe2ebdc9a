#include "ddp/averager.h"

#include <cmath>

#include "capi/bytes.h"
#include "capi/context.h"
#include "outer/averager.h"

using namespace libddp;

namespace {

// Periods double at least, so there cannot be more of them.
constexpr std::size_t kMostPeriods = 63;

Context& committed_between_steps(ddp_context* context) {
    context_of(context).committed();
    Context& c = between_steps(context);
    if (c.model().options.reducer.shard)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_SHARD each value comes from its owner, alike for all ranks, so "
                  "there is nothing to average");
    return c;
}

// Growing, and each a multiple of the one before.
template <class Integer>
void check_growing(const Integer* values, std::size_t count, const char* name) {
    for (std::size_t i = 0; i < count; ++i) {
        if (values[i] < 1)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, name, "[", i, "] is ", values[i],
                      "; it must be at least 1");
        if (i > 0 && (values[i] <= values[i - 1] || values[i] % values[i - 1] != 0))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, name, "[", i, "] is ", values[i],
                      "; it must be a multiple of the one before, ", values[i - 1], ", and larger");
    }
}

std::vector<Averager::Level> read_levels(const int64_t* periods, const int32_t* sizes, size_t count,
                                         std::int32_t world) {
    require(periods, "periods");
    if (count < 1 || count > kMostPeriods)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "count is ", count, "; give 1 to ", kMostPeriods,
                  " periods");
    if (count > 1) require(sizes, "group_sizes");
    check_growing(periods, count, "periods");
    if (sizes) {
        check_growing(sizes, count, "group_sizes");
        if (sizes[count - 1] != world)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "group_sizes[", count - 1, "] is ",
                      sizes[count - 1], "; the last one must be the world size, ", world);
    }
    std::vector<Averager::Level> levels;
    for (std::size_t i = 0; i < count; ++i)
        levels.push_back({periods[i], sizes ? sizes[i] : world, nullptr});
    return levels;
}

ddp_outer_options outer_defaults() {
    return {sizeof(ddp_outer_options), DDP_OUTER_NESTEROV, 0, 0.7, 0.9, 0, 1, 0, 0, 0};
}

void check_outer(const ddp_outer_options& o) {
    const auto refuse = [](const char* field, double value, const char* rule) {
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->", field, " is ", value, "; it must be ",
                  rule);
    };
    if (o.kind < DDP_OUTER_NONE || o.kind > DDP_OUTER_SLOWMO)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->kind is ", o.kind,
                  "; give DDP_OUTER_NONE, DDP_OUTER_SGD, DDP_OUTER_NESTEROV or DDP_OUTER_SLOWMO");
    require_zero(o.reserved0, "options->reserved0");
    if (!std::isfinite(o.learning_rate) || o.learning_rate < 0)
        refuse("learning_rate", o.learning_rate, "finite and not negative");
    // Written so that it also refuses NaN.
    if (!(o.momentum >= 0 && o.momentum < 1))
        refuse("momentum", o.momentum, "at least 0 and less than 1");
    if (o.kind == DDP_OUTER_SLOWMO &&
        !(std::isfinite(o.inner_learning_rate) && o.inner_learning_rate > 0))
        refuse("inner_learning_rate", o.inner_learning_rate,
               "finite and more than 0 for DDP_OUTER_SLOWMO");
    if (o.fragments < 1)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->fragments is ", o.fragments,
                  "; it must be at least 1");
    if (o.sent_dtype != 0 && o.sent_dtype != DDP_BF16 && o.sent_dtype != DDP_U8)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->sent_dtype is ", o.sent_dtype,
                  "; give DDP_BF16, DDP_U8, or 0 for the values in their own type");
    if (o.delay < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->delay is ", o.delay,
                  "; it must not be negative");
    if (!(o.alpha >= 0 && o.alpha < 1)) refuse("alpha", o.alpha, "at least 0 and less than 1");
}

}  // namespace

ddp_status ddp_average_parameters(ddp_context* context, ddp_group* group, ddp_error** error) {
    return guard(error, "ddp_average_parameters", [&] {
        Context& c = committed_between_steps(context);
        average_parameters(c, group ? *group->impl : *c.group());
    });
}

ddp_status ddp_averager_create(ddp_context* context, const int64_t* periods,
                               const int32_t* group_sizes, size_t count, int64_t warmup_steps,
                               ddp_averager** averager, ddp_error** error) {
    return guard(error, "ddp_averager_create", [&] {
        Context& c = committed_between_steps(context);
        auto levels = read_levels(periods, group_sizes, count, c.group()->world());
        if (warmup_steps < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "warmup_steps is ", warmup_steps,
                      "; it must not be negative");
        require(averager, "averager");
        *averager = new ddp_averager{Averager(c, std::move(levels), warmup_steps)};
    });
}

void ddp_averager_free(ddp_averager* averager) {
    free_handle(averager);
}

ddp_status ddp_averager_step(ddp_averager* averager, int32_t* ranks, ddp_error** error) {
    return guard(error, "ddp_averager_step", [&] {
        const std::int32_t averaged = require(averager, "averager")->impl.step();
        if (ranks) *ranks = averaged;
    });
}

int64_t ddp_averager_get_step(const ddp_averager* averager) {
    return averager ? averager->impl.steps() : -1;
}

ddp_status ddp_averager_set_step(ddp_averager* averager, int64_t step, ddp_error** error) {
    return guard(error, "ddp_averager_set_step", [&] {
        Averager& a = require(averager, "averager")->impl;
        if (step < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "step is ", step, "; it must not be negative");
        a.set_steps(step);
    });
}

void ddp_outer_options_init_sized(ddp_outer_options* options, size_t size) {
    fill_struct(options, size, outer_defaults());
}

ddp_status ddp_averager_set_outer(ddp_averager* averager, const ddp_outer_options* options,
                                  ddp_error** error) {
    return guard(error, "ddp_averager_set_outer", [&] {
        Averager& a = require(averager, "averager")->impl;
        ddp_outer_options o = outer_defaults();
        if (options) read_struct(options, &o, "options");
        check_outer(o);
        a.set_outer(o);
    });
}

ddp_status ddp_averager_set_fragments(ddp_averager* averager, const int32_t* fragment_of,
                                      size_t count, ddp_error** error) {
    return guard(error, "ddp_averager_set_fragments", [&] {
        Averager& a = require(averager, "averager")->impl;
        require(fragment_of, "fragment_of");
        a.set_fragments({fragment_of, fragment_of + count});
    });
}

ddp_status ddp_averager_go_back(ddp_averager* averager, ddp_error** error) {
    return guard(error, "ddp_averager_go_back", [&] {
        Averager& a = require(averager, "averager")->impl;
        a.require_outer();
        if (a.has_outer_parameters()) a.go_back();
    });
}

ddp_status ddp_averager_state_save(ddp_averager* averager, void** data, size_t* size,
                                   ddp_error** error) {
    return guard(error, "ddp_averager_state_save", [&] {
        const Averager& a = require(averager, "averager")->impl;
        require(data, "data");
        require(size, "size");
        give_bytes(a.state(), data, size);
    });
}

ddp_status ddp_averager_state_load(ddp_averager* averager, const void* data, size_t size,
                                   ddp_error** error) {
    return guard(error, "ddp_averager_state_load", [&] {
        Averager& a = require(averager, "averager")->impl;
        require(data, "data");
        a.load_state(static_cast<const std::byte*>(data), size);
    });
}
