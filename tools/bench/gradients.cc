#include "gradients.h"

#include <algorithm>

namespace bench {
namespace {

// Each gradient begins at a multiple of 64 bytes, as in libddp's buckets.
std::size_t padded(std::size_t count) {
    return (count + 15) / 16 * 16;
}

std::size_t count_of(const Parameter& parameter) {
    return static_cast<std::size_t>(parameter.count());
}

void register_parameter(ddp_context* context, const Parameter& parameter, float* value, float* own,
                        const Place* place) {
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = parameter.name.c_str();
    desc.shape = parameter.shape.data();
    desc.ndim = static_cast<std::int32_t>(parameter.shape.size());
    desc.data = value;
    desc.grad = own;
    if (place) desc.device = place->device;
    ddp_param index = -1;
    Result result;
    result.check(ddp_register_param(context, &desc, &index, result));
}

}  // namespace

ddp_context_options context_options(const Settings& settings, std::uint32_t flags) {
    ddp_context_options result;
    ddp_context_options_init(&result);
    result.bucket_cap_bytes =
        static_cast<std::uint64_t>(std::max(1.0, settings.bucket_mb * 1048576));
    result.first_bucket_cap_bytes =
        static_cast<std::uint64_t>(std::max(1.0, settings.first_bucket_mb * 1048576));
    result.flags = flags;
    return result;
}

OwnGradients::OwnGradients(const Model& model) {
    std::size_t total = 16;
    for (const Parameter& parameter : model) total += padded(count_of(parameter));
    memory_ = std::make_unique<float[]>(total);
    void* start = memory_.get();
    std::align(64, 1, start, total);
    auto* next = static_cast<float*>(start);
    for (const Parameter& parameter : model) {
        gradients_.push_back({next, count_of(parameter)});
        next += padded(count_of(parameter));
    }
}

SharedGradients::SharedGradients(ddp_group* group, const ddp_context_options& options,
                                 const Model& model, const std::vector<Gradient>* own,
                                 const Extras& extras)
    : view_(own == nullptr) {
    const Place* const place = extras.place;
    if (place) place_ = *place;
    ddp_context* context = nullptr;
    Result result;
    result.check(ddp_context_create(group, &options, &context, result));
    context_.reset(context);
    for (const Parameter& parameter : model) {
        const Gradient gradient =
            view_ ? Gradient{nullptr, count_of(parameter)} : (*own)[gradients_.size()];
        float* const value = extras.values ? (*extras.values)[gradients_.size()].data : nullptr;
        register_parameter(context, parameter, value, gradient.data, place);
        gradients_.push_back(gradient);
        names_.push_back(parameter.name);
    }
    if (place) {
        Result set;
        set.check(
            ddp_set_stream(context, place->device.kind, place->device.index, place->stream, set));
    }
    if (extras.norm) {
        std::int32_t number = -1;
        Result tracked;
        tracked.check(ddp_track_grad_norm(context, 2, nullptr, 0, &number, tracked));
    }
    Result committed;
    committed.check(ddp_commit(context, committed));
    follow_views();
}

void SharedGradients::begin_step() {
    Result result;
    result.check(ddp_step_begin(context_.get(), result));
    follow_views();
}

void SharedGradients::set_sync(bool sync) const {
    Result result;
    result.check(ddp_set_sync(context_.get(), sync ? 1 : 0, result));
}

void SharedGradients::ready(std::size_t index) const {
    Result result;
    const auto param = static_cast<ddp_param>(index);
    result.check(place_ ? ddp_grad_ready_on(context_.get(), param, place_->stream, result)
                        : ddp_grad_ready(context_.get(), param, result));
}

void SharedGradients::finalize() const {
    Result result;
    result.check(place_ ? ddp_finalize_on(context_.get(), place_->stream, result)
                        : ddp_finalize(context_.get(), result));
}

void SharedGradients::vote(std::uint32_t bits) const {
    Result result;
    result.check(ddp_step_vote(context_.get(), bits, result));
}

std::uint32_t SharedGradients::votes() const {
    Result result;
    std::uint32_t any = 0;
    result.check(ddp_step_votes(context_.get(), &any, nullptr, nullptr, result));
    return any;
}

void SharedGradients::clip(double max_norm) const {
    Result result;
    result.check(ddp_clip_grad_norm(context_.get(), 0, max_norm, nullptr, result));
}

void SharedGradients::finalize_async() const {
    Result result;
    result.check(ddp_finalize_async(context_.get(), result));
}

void SharedGradients::wait(std::size_t index, void* stream) const {
    Result result;
    result.check(ddp_wait_param_on(context_.get(), static_cast<ddp_param>(index), stream, result));
}

void SharedGradients::follow_views() {
    const std::int64_t generation = ddp_layout_generation(context_.get());
    if (!view_ || generation == generation_) return;
    generation_ = generation;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
        void* view = nullptr;
        Result result;
        result.check(ddp_grad_view(context_.get(), static_cast<ddp_param>(i), &view, result));
        gradients_[i].data = static_cast<float*>(view);
    }
}

}  // namespace bench
