// The program's calls of contexts.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "fuzz/program.h"

namespace fuzz {

void Program::free_context(Context& context) {
    ddp_averager_free(context.averager);
    ddp_optimizer_free(context.optimizer);
    ddp_context_free(context.handle);
    context = {};
}

void Program::create_context() {
    Context& context = any_context();
    free_context(context);
    Roomy<ddp_context_options> options;
    ddp_context_options_init(&options);
    // One flag often, several seldom.
    options.flags = bytes_.flag() ? 1u << bytes_.below(19) : 0;
    if (odd()) options.flags = bytes_.number<std::uint32_t>();
    options.flags |= (options.flags & 0x60u) != 0 ? std::uint32_t{DDP_CONTEXT_FIND_UNUSED} : 0;
    options.flags |= (options.flags & 0x300u) != 0 ? std::uint32_t{DDP_CONTEXT_JOIN} : 0;
    options.reduction = static_cast<ddp_reduction>(bytes_.below(4));
    options.bucket_cap_bytes = bytes_.byte();
    options.first_bucket_cap_bytes = odd() ? bytes_.number<std::uint64_t>() : 0;
    options.rebuild_interval = static_cast<std::int8_t>(bytes_.byte());
    options.check_interval = static_cast<std::int64_t>(bytes_.below(3)) - 1;
    options.verify_interval =
        (options.flags & DDP_CONTEXT_VERIFY_BUFFERS) != 0 || options.check_interval > 0 ? 2 : 0;
    std::uint64_t caps[4];
    for (std::uint64_t& cap : caps) cap = bytes_.byte();
    options.bucket_caps = bytes_.flag() ? caps : nullptr;
    options.bucket_cap_count = odd() ? bytes_.below(5) : 0;
    spoil_size(options);
    call(ddp_context_create, group(), odd() ? nullptr : &options,
         odd() ? nullptr : &context.handle);
}

void Program::register_param() {
    static const std::int64_t extents[] = {1, 2, 3, 5, 8, 33, 0, 4};
    static const std::int64_t odd_extents[] = {-1, INT64_MAX, INT64_MIN, std::int64_t{1} << 62};
    Context& context = any_context();
    Parameter parameter;
    Roomy<ddp_param_desc> desc;
    ddp_param_desc_init(&desc);
    const std::string name = text({"a", "b", "c", "d.weight", "d.bias", "e"});
    desc.name = odd() ? nullptr : name.c_str();
    parameter.shape.resize(bytes_.below(4));
    bool sized = true;
    for (std::int64_t& extent : parameter.shape) {
        sized = sized && !odd();
        extent = sized ? extents[bytes_.below(8)] : odd_extents[bytes_.below(4)];
        if (sized) parameter.count *= static_cast<std::size_t>(extent);
    }
    desc.ndim = odd() ? static_cast<std::int8_t>(bytes_.byte())
                      : static_cast<std::int32_t>(parameter.shape.size());
    // as many as ndim may say
    parameter.shape.resize(std::max<std::size_t>(parameter.shape.size(), 130), 1);
    desc.shape = odd() ? nullptr : parameter.shape.data();
    desc.dtype = parameter.dtype =
        static_cast<ddp_dtype>(odd() ? bytes_.below(12) : 1 + bytes_.below(9));
    const bool whole = desc.ndim >= 0 && desc.shape;
    if (whole && sized) {
        parameter.count = 1;
        for (std::int32_t i = 0; i < desc.ndim; ++i)
            parameter.count *= static_cast<std::size_t>(parameter.shape[i]);
        if (bytes_.flag()) parameter.data = memory(parameter.bytes());
        if (bytes_.flag()) parameter.grad = memory(parameter.bytes());
    }
    desc.data = parameter.data.get();
    desc.grad = parameter.grad.get();
    desc.flags = bytes_.flag() ? 1u << bytes_.below(6) : 0;
    if ((desc.flags & DDP_PARAM_SPARSE) != 0 && !odd()) desc.grad = nullptr;
    desc.uses =
        odd() ? bytes_.number<std::uint32_t>() : static_cast<std::uint32_t>(bytes_.below(3));
    if (odd())
        desc.device = {static_cast<ddp_device_kind>(bytes_.below(2) * 7),
                       static_cast<std::int32_t>(bytes_.byte())};
    spoil_size(desc);
    ddp_param made = -1;
    ddp_context* const target = odd() ? nullptr : context.handle;
    const bool slices = !parameter.data && !parameter.grad && bytes_.flag();
    const auto adds = slices ? ddp_register_slices : ddp_register_param;
    if (call(adds, target, &desc, odd() ? nullptr : &made) != DDP_OK) return;
    check(made == static_cast<ddp_param>(context.params.size()),
          "parameters are not numbered in their order");
    // A smaller struct has no ndim: then the parameter is one number.
    if (desc.struct_size < offsetof(ddp_param_desc, ndim) + sizeof desc.ndim) {
        desc.ndim = 0;
        parameter.count = 1;
    }
    parameter.shape.resize(static_cast<std::size_t>(desc.ndim));
    if (!slices) return context.params.push_back(std::move(parameter));
    const std::int64_t count = parameter.shape.front();
    for (std::int64_t i = 0; i < count; ++i) {
        Parameter& slice = context.params.emplace_back();
        slice.dtype = parameter.dtype;
        slice.shape.assign(parameter.shape.begin() + 1, parameter.shape.end());
        slice.count = parameter.count / static_cast<std::size_t>(count);
    }
}

void Program::register_buffer() {
    Context& context = any_context();
    Roomy<ddp_param_desc> desc;
    ddp_param_desc_init(&desc);
    const std::string name = text({"mean", "variance", "a"});
    const std::int64_t shape[] = {static_cast<std::int64_t>(bytes_.below(9))};
    Memory data = memory(static_cast<std::size_t>(shape[0]) * 16);
    desc.name = name.c_str();
    desc.shape = shape;
    desc.ndim = 1;
    desc.dtype = static_cast<ddp_dtype>(1 + bytes_.below(9));
    desc.data = odd() ? nullptr : data.get();
    if (call(ddp_register_buffer, odd() ? nullptr : context.handle, &desc) == DDP_OK)
        context.buffers.push_back(std::move(data));
}

// A context that is ready for steps, so that these need not wait for luck.
void Program::set_up() {
    create_context();
    for (std::size_t i = bytes_.below(5); i > 0; --i) register_param();
    if (bytes_.flag()) register_buffer();
    for (Context& context : contexts_) call(ddp_commit, context.handle);
}

void Program::grad_ready() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    if (odd())
        call(ddp_grad_ready_on, context.handle, which, nullptr);
    else
        call(ddp_grad_ready, odd() ? nullptr : context.handle, which);
}

void Program::all_ready() {
    const Context& context = any_context();
    for (std::size_t i = context.params.size(); i > 0; --i)
        call(ddp_grad_ready, context.handle, static_cast<ddp_param>(i - 1));
}

void Program::put() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    const Parameter* parameter = known(context, which);
    const Memory given = memory(parameter ? parameter->bytes() : 8);
    const void* gradient = given.get();
    if (odd()) gradient = nullptr;
    if (odd() && parameter && parameter->grad) gradient = parameter->grad.get();
    call(ddp_put, odd() ? nullptr : context.handle, which, gradient,
         odd() ? std::uint32_t{bytes_.byte()} : static_cast<std::uint32_t>(bytes_.below(2)));
}

void Program::sparse() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    const Parameter* parameter = known(context, which);
    std::int64_t indices[4];
    for (std::int64_t& index : indices)
        index = odd() ? bytes_.number<std::int64_t>() : static_cast<std::int64_t>(bytes_.below(3));
    const Memory values = memory(4 * (parameter ? parameter->bytes() : 8));
    call(ddp_grad_ready_sparse, context.handle, which, odd() ? nullptr : indices,
         odd() ? nullptr : values.get(), bytes_.below(5));
    const std::int64_t* rows = nullptr;
    const void* results = nullptr;
    std::size_t count = 0;
    if (call(ddp_sparse_gradient, context.handle, which, &rows, odd() ? nullptr : &results,
             &count) != DDP_OK)
        return;
    std::int64_t before = -1;
    for (std::size_t i = 0; i < count; before = rows[i++])
        check(before < rows[i], "rows are not in order");
}

void Program::factors() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    const Parameter* parameter = known(context, which);
    std::size_t bytes = 16;  // of a row, at most
    if (parameter)
        for (const std::int64_t extent : parameter->shape)
            bytes *= static_cast<std::size_t>(std::max<std::int64_t>(1, extent));
    const std::size_t rows = bytes_.below(4);
    const Memory left = memory(rows * bytes), right = memory(rows * bytes);
    call(ddp_grad_ready_factors, context.handle, which, odd() ? nullptr : left.get(),
         odd() ? nullptr : right.get(), rows);
}

void Program::finalize() {
    switch (bytes_.below(8)) {
        case 0:
            call(ddp_finalize_async, handle());
            break;
        case 1:
            call(ddp_finalize_enqueue, handle());
            break;
        case 2:
            call(ddp_finalize_on, handle(), nullptr);
            break;
        default:
            call(ddp_finalize, handle());
    }
}

void Program::wait_param() {
    const Context& context = any_context();
    const ddp_param which = param(context);
    if (odd())
        call(ddp_wait_param_on, context.handle, which, nullptr);
    else
        call(ddp_wait_param, context.handle, which);
}

void Program::mark_unused() {
    const Context& context = any_context();
    const auto params = some_params(context);
    call(ddp_mark_unused, context.handle, odd() ? nullptr : params.data(), params.size());
}

void Program::set_frozen() {
    const Context& context = any_context();
    const auto params = some_params(context);
    call(ddp_set_frozen, context.handle, odd() ? nullptr : params.data(), params.size(),
         bytes_.below(2));
}

void Program::skip() {
    const Context& context = any_context();
    const auto params = some_params(context);
    call(ddp_skip_params, context.handle, odd() ? nullptr : params.data(), params.size(),
         odd() ? std::int32_t{bytes_.byte()} : static_cast<std::int32_t>(bytes_.below(2)) - 1);
}

void Program::set_weight() {
    static const double weights[] = {0, 1, -1, 1e300, 1e-300, 0.0 / 0.0, 1.0 / 0.0, 32};
    call(ddp_set_weight, handle(), weights[bytes_.below(8)]);
}

void Program::share_batch() {
    static const std::int64_t numbers[] = {0, 1, 2, 12, -1, INT64_MIN, INT64_MAX, 1LL << 32};
    const auto number = [this] { return numbers[bytes_.below(8)]; };
    ddp_context* const context = handle();
    std::int64_t begin = 0, end = 0;
    call(ddp_share_batch, context, number(), number(), number());
    call(ddp_batch_share, context, odd() ? nullptr : &begin, &end);
    call(ddp_batch_time, context, number());
}

void Program::plan() {
    ddp_context* const context = handle();
    char* saved = nullptr;
    if (call(ddp_plan_save, context, odd() ? nullptr : &saved) == DDP_OK) plan_ = saved;
    ddp_free(saved);
    if (bytes_.flag()) return;
    const std::string given = odd() ? std::string(bytes_.piece()) : plan_;
    call(ddp_plan_adopt, handle(), given.c_str());
    if (bytes_.flag()) call(ddp_request_rebuild, context);
}

void Program::statistics() {
    ddp_context* const context = handle();
    Roomy<ddp_stats> stats;
    stats.struct_size = sizeof(ddp_stats);
    spoil_size(stats);
    call(ddp_stats_get, context, odd() ? nullptr : &stats);
    std::uint64_t sizes[3];
    ddp_param order[3];
    std::size_t count = 0;
    call(ddp_stats_bucket_sizes, context, bytes_.below(2), odd() ? nullptr : sizes, bytes_.below(4),
         &count);
    call(ddp_stats_ready_order, context, odd() ? nullptr : order, bytes_.below(4),
         odd() ? nullptr : &count);
}

void Program::view() {
    Context& context = any_context();
    const ddp_param which = param(context);
    void* place = nullptr;
    if (call(ddp_grad_view, context.handle, which, odd() ? nullptr : &place) == DDP_OK)
        std::memset(place, bytes_.byte(), known(context, which)->bytes());
    ddp_layout*& layout = layouts_[bytes_.below(layouts_.size())];
    if (bytes_.flag()) return;
    ddp_layout_free(layout);
    layout = nullptr;
    call(ddp_layout_hold, handle(), odd() ? nullptr : &layout);
}

void Program::ask() {
    const Context& context = any_context();
    ddp_context* const asked = odd() ? nullptr : context.handle;
    const ddp_param which = param(context);
    const std::int32_t buckets = ddp_context_bucket_count(asked);
    check(ddp_context_param_bucket(asked, which) < std::max(buckets, 0),
          "a parameter is in no bucket");
    ddp_layout_generation(asked);
    ddp_skipped(asked, which);
    check((ddp_hook_name(asked) == nullptr) == (asked == nullptr), "a hook has no name");
    std::int32_t used = 0;
    call(ddp_param_used, asked, which, odd() ? nullptr : &used);
}

// Seldom, because everything after it fails.
void Program::abort() {
    if (!odd()) return;
    const std::string reason(bytes_.piece(20));
    if (bytes_.flag())
        call(ddp_context_abort, handle(), reason.c_str());
    else
        call(ddp_group_abort, group(), reason.c_str());
}

void Program::averager() {
    Context& context = any_context();
    if (bytes_.below(4) == 0) {
        ddp_averager_free(context.averager);
        context.averager = nullptr;
        std::int64_t periods[3];
        std::int32_t sizes[3];
        for (std::int64_t& period : periods)
            period = odd() ? bytes_.number<std::int64_t>()
                           : static_cast<std::int64_t>(1) << bytes_.below(5);
        for (std::int32_t& size : sizes) size = odd() ? bytes_.number<std::int32_t>() : 1;
        call(ddp_averager_create, context.handle, odd() ? nullptr : periods,
             odd() ? sizes : nullptr, odd() ? bytes_.below(4) : 1,
             static_cast<std::int64_t>(bytes_.below(3)) - odd(),
             odd() ? nullptr : &context.averager);
    }
    if (bytes_.below(4) == 0) outer_optimizer(context.averager);
    std::int32_t ranks = 0;
    call(ddp_averager_step, context.averager, bytes_.flag() ? &ranks : nullptr);
    ddp_averager_get_step(context.averager);
    if (odd()) call(ddp_averager_set_step, context.averager, bytes_.number<std::int64_t>());
    if (bytes_.flag()) call(ddp_average_parameters, context.handle, odd() ? nullptr : group_);
}

void Program::outer_optimizer(ddp_averager* averager) {
    Roomy<ddp_outer_options> options;
    ddp_outer_options_init(&options);
    options.kind =
        odd() ? bytes_.number<ddp_outer_kind>() : static_cast<ddp_outer_kind>(bytes_.below(4));
    options.learning_rate = odd() ? bytes_.number<double>() : 0.5;
    options.momentum = odd() ? bytes_.number<double>() : 0.5;
    options.inner_learning_rate = odd() ? bytes_.number<double>() : 0.5;
    options.fragments =
        odd() ? bytes_.number<std::int32_t>() : 1 + static_cast<std::int32_t>(bytes_.below(2));
    options.delay =
        odd() ? bytes_.number<std::int16_t>() : static_cast<std::int64_t>(bytes_.below(3));
    options.alpha = odd() ? bytes_.number<double>() : 0.5;
    options.sent_dtype = odd()           ? bytes_.number<ddp_dtype>()
                         : bytes_.flag() ? DDP_BF16
                         : bytes_.flag() ? DDP_U8
                                         : 0;
    call(ddp_averager_set_outer, averager, odd() ? nullptr : &options);
    std::int32_t fragment_of[4];
    for (std::int32_t& fragment : fragment_of)
        fragment =
            odd() ? bytes_.number<std::int32_t>() : static_cast<std::int32_t>(bytes_.below(2));
    if (bytes_.flag())
        call(ddp_averager_set_fragments, averager, odd() ? nullptr : fragment_of, bytes_.below(5));
    if (bytes_.flag()) call(ddp_averager_go_back, averager);
    void* data = nullptr;
    std::size_t size = 0;
    if (call(ddp_averager_state_save, averager, odd() ? nullptr : &data, &size) != DDP_OK) return;
    std::string state(static_cast<const char*>(data), size);
    ddp_free(data);
    check(call(ddp_averager_state_load, averager, state.data(), state.size()) == DDP_OK,
          "an averager does not load what it has saved");
    if (odd())
        state[bytes_.number<std::uint16_t>() % state.size()] = static_cast<char>(bytes_.byte());
    call(ddp_averager_state_load, averager, state.data(), state.size());
}

}  // namespace fuzz
