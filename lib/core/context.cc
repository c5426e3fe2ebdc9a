#include "core/context.h"

#include <algorithm>
#include <cmath>

#include "comm/monitor.h"
#include "core/agreement.h"
#include "core/hook_state.h"
#include "core/plan.h"
#include "device/device.h"
#include "device/host_copy.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {

std::int32_t Context::register_param(Param param) {
    building();
    model_.copy_if_checked(param);
    return model_.table.add_param(std::move(param));
}

// All or none.
std::vector<std::int32_t> Context::register_params(std::vector<Param> params) {
    building();
    ParamTable table = model_.table;
    std::vector<std::int32_t> ids;
    for (Param& param : params) {
        model_.copy_if_checked(param);
        ids.push_back(table.add_param(std::move(param)));
    }
    model_.table = std::move(table);
    return ids;
}

void Context::introduce(ContextNumber& number) const {
    number.set_param_names(model_.param_names());
    number.set_frozen(first_frozen());
}

std::int32_t Context::first_frozen() const {
    if (const auto* reducer = this->reducer()) {
        for (std::int32_t id = 0; id < model_.table.size(); ++id)
            if (reducer->parts().participation.frozen(id)) return id;
        return -1;
    }
    return frozen_.empty() ? -1 : *std::min_element(frozen_.begin(), frozen_.end());
}

void Context::register_buffer(Param buffer) {
    building();
    model_.table.add_buffer(std::move(buffer));
}

void Context::commit() {
    building();
    group_->require_unbroken();
    introduce(*number_);
    std::string header = model_.options.text();
    if (plan_text_) header += str(", adopted plan ", std::hex, Hash().add(*plan_text_).value());
    agree_on_model(*group_, number_->tag(), header, model_.table.lines());
    model_.check();  // after the ranks have compared their tables, so that all of them fail
    for (const Param* p : model_.all()) model_.streams.require(p->device);
    const StreamScope order(model_.streams);
    agree_on_ranges(*group_, number_->tag());
    std::optional<Planner::Buckets> planned;
    if (plan_text_)
        in_call("ddp_plan_adopt, read by ddp_commit", [&] { planned = plan_from_text(*plan_text_, model_.table); });
    if (model_.options.initial_broadcast) broadcast_state(*group_, number_->tag(), model_.streams, model_.all(), 0);
    reducer_ = std::make_unique<Reducer>(group_, *number_, model_, hook_, frozen_, std::move(planned));
    hook_ = {};
    reducer_->results().set_callback(std::move(reduced_));
    reducer_->set_sync(sync_);
    wait_for_devices();
    committed_.store(reducer_.get(), std::memory_order_release);
}

// Of the gradients that are reduced in place: what lies in one range of memory on all ranks of the group.
void Context::agree_on_ranges(Group& group, const OpTag& of) {
    if (model_.table.any_in_place())
        model_.table.set_follows(agree_on_neighbours(group, of, model_.table.neighbours()));
}

// New views are there for every stream of the caller's, not only for those that libddp knows.
void Context::wait_for_devices() const {
    model_.streams.wait(group_->timeout_ms(), [this] { group_->check_in_wait("a device"); });
}

void Context::set_stream(const ddp_device& device, void* stream) {
    if (is_cpu(device)) fail_call(DDP_ERROR_INVALID_ARGUMENT, "kind is DDP_DEVICE_CPU, which has no streams");
    require_between_steps();
    model_.streams.require(device)->set_caller(stream);
}

void Context::finalize_enqueue() {
    step_call([](Reducer& r) { r.results().finalize_enqueue(); });
}

void Context::finalize_on(void* stream) {
    committed();
    if (model_.streams.all().size() > 1)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the parameters lie on ", model_.streams.all().size(),
                  " devices; name each one's stream with ddp_set_stream, and call ddp_finalize_enqueue");
    const CallerScope scope(model_.streams.all().empty() ? nullptr : model_.streams.all().front().get(), stream);
    step_call([](Reducer& r) { r.results().finalize_enqueue(); });
}

void Context::set_sync(bool sync) {
    if (auto* reducer = this->reducer())
        reducer->set_sync(sync);
    else
        sync_ = sync;
}

void Context::require_between_steps() const {
    if (auto* reducer = this->reducer()) reducer->require_idle();
}

const HookPtr& Context::hook() const {
    auto* reducer = this->reducer();
    return reducer ? reducer->parts().hook.hook() : hook_;
}

void Context::set_hook(HookPtr hook) {
    if (!hook) hook = std::make_shared<AllreduceHook>();
    hook_name_ = hook->name();
    if (auto* reducer = this->reducer())
        reducer->set_hook(std::move(hook));
    else
        hook_ = std::move(hook);
}

std::vector<std::byte> Context::hook_state() const {
    committed();
    model_.streams.gather();
    HookState state;
    hook()->save(state);
    return write_hook_state(state, {hook_name_, group_->rank(), group_->world()}, model_.table, group_->timeout_ms());
}

void Context::load_hook_state(const std::byte* data, std::size_t size, bool shared_only) {
    committed();
    HookState state =
        read_hook_state(data, size, {hook_name_, group_->rank(), group_->world()}, model_.table, shared_only);
    model_.streams.gather();
    state.copies = std::make_shared<HostCopies>(group_->timeout_ms());
    for (auto& array : state.arrays)
        if (array.param >= 0) array.home = model_.streams.stream(model_.table[array.param].device);
    hook()->load(state);
}

void Context::set_reduced_callback(ReducedCallback callback) {
    if (auto* reducer = this->reducer())
        reducer->results().set_callback(std::move(callback));
    else
        reduced_ = std::move(callback);
}

void Context::set_frozen(const std::vector<std::int32_t>& params, bool frozen) {
    for (auto id : params) model_.table.require(id);
    if (auto* reducer = this->reducer()) {
        reducer->set_frozen(params, frozen);
        number_->set_frozen(first_frozen());
        return;
    }
    for (auto id : params) {
        std::erase(frozen_, id);
        if (frozen) frozen_.push_back(id);
    }
}

void Context::skip(std::vector<std::int32_t> params, std::int32_t authority) {
    Reducer& reducer = committed();
    reducer.require_idle();
    if (model_.options.join)
        fail_call(DDP_ERROR_UNSUPPORTED, "with DDP_CONTEXT_JOIN a rank without inputs could not know the choice");
    if (authority < -1 || authority >= group_->world())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "authority is ", authority, "; it must be a rank from 0 to ",
                  group_->world() - 1, ", or -1");
    for (auto id : params) model_.table.require(id);
    if (authority >= 0) {
        const OpTag tag = number_->tag(Purpose::kSkip);
        auto count = static_cast<std::int64_t>(params.size());
        group_->run({DDP_COLLECTIVE_BROADCAST, nullptr, &count, 1, DDP_I64, DDP_SUM, authority}, tag);
        if (count < 0)
            throw Error(
                {DDP_ERROR_IO, str("rank ", authority, " sent ", count, " as its number of parameters"), authority});
        params.resize(static_cast<std::size_t>(count));
        if (count > 0)
            group_->run({DDP_COLLECTIVE_BROADCAST, nullptr, params.data(), params.size(), DDP_I32, DDP_SUM, authority},
                        tag);
        for (auto id : params) model_.table.require(id);
    }
    reducer.skip(params);
}

void Context::set_group(std::shared_ptr<Group> group) {
    Reducer& reducer = committed();
    if (!group_->broken()) reducer.require_idle();
    group->require_unbroken();
    reducer.leave_group(*group);
    auto number = std::make_unique<ContextNumber>(group);
    introduce(*number);
    agree_on_model(*group, number->tag(), model_.options.text(), model_.table.lines());
    agree_on_ranges(*group, number->tag());
    group_ = group;
    number_ = std::move(number);
    const StreamScope order(model_.streams);
    reducer.set_group(std::move(group), *number_);
    buffers_sent_after_ = reducer.parts().totals.synced_steps;
    own_steps_ = 0;  // values are equal again, or the program makes them so
    joined_ = -1;
    last_error_ = DDP_OK;
}

std::string Context::plan_text() const {
    return plan_to_text(committed().parts().layout->plan(), model_.table);
}

void Context::adopt_plan(const std::string& text) {
    if (auto* reducer = this->reducer()) return reducer->adopt_plan(plan_from_text(text, model_.table));
    plan_text_ = text;
}

void Context::abort(const std::string& reason) {
    group_->break_everywhere(
        {DDP_ERROR_ABORTED,
         str("rank ", group_->rank(), " called ddp_context_abort", reason.empty() ? "" : ": ", reason),
         group_->rank()});
}

std::vector<std::shared_ptr<const void>> Context::hold_layout() {
    return committed().parts().layout->view_memory();
}

void* Context::grad_view(std::int32_t param) {
    Reducer& reducer = committed();
    model_.table.require(param);
    if (model_.table[param].sparse || model_.table[param].ignored)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", model_.table[param].name, "' is ",
                  model_.table[param].sparse ? "sparse" : "ignored", " and has no place in a bucket");
    return reducer.parts().layout->view(param);
}

Reducer& Context::committed() const {
    auto* reducer = this->reducer();
    if (!reducer) fail_call(DDP_ERROR_INVALID_STATE, "the context is still being built; call ddp_commit first");
    return *reducer;
}

void Context::building() const {
    if (reducer())
        fail_call(DDP_ERROR_INVALID_STATE, "the context is committed already; its parameters can no longer change");
}

// The beginning of a step: what ranks exchange there, rebuilds, buffers; and ranks that run out of inputs.
void Context::step_begin() {
    Reducer& reducer = committed();
    group_->check();
    reducer.require_idle();
    const StreamScope order(model_.streams);
    if (!model_.exchanges()) {
        reducer_->rebuild_if_due(0);
        send_buffers(0);
        return;
    }
    const StepOutcome outcome = exchange(false);
    if (!has_mean(outcome))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the weights of all ranks (ddp_set_weight) sum to ", outcome.total_weight,
                  ", so there is no mean");
    follow(outcome);
    ++own_steps_;
}

// A rank without inputs cannot know: it ends the step as every other.
void Context::discard_step() {
    step_call([this](Reducer& reducer) {
        if (joined_ >= 0 && !group_->broken())
            fail_call(
                DDP_ERROR_UNSUPPORTED, "rank ", joined_,
                " is in ddp_join, and cannot discard the step with the others; end it with ddp_finalize, and give "
                "zeros where there is no gradient, or create the context with DDP_CONTEXT_SKIP_NONFINITE");
        reducer.results().discard();
    });
}

void Context::join() {
    Reducer& reducer = committed();
    group_->check();
    reducer.require_idle();
    if (!model_.options.join)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "create the context with DDP_CONTEXT_JOIN, so that the other ranks expect this");
    const StreamScope order(model_.streams);
    StepOutcome outcome;
    for (outcome = exchange(true); outcome.present > 0; outcome = exchange(true)) {
        if (!has_mean(outcome)) continue;  // the others were told in ddp_step_begin and begin again
        follow(outcome);
        reducer.results().shadow();
    }
    joined_ = -1;
    broadcast_state(*group_, number_->tag(), model_.streams, model_.all(), outcome.last_to_join);
    buffers_sent_after_ = reducer.parts().totals.synced_steps;
    own_steps_ = 0;
}

bool Context::has_mean(const StepOutcome& outcome) const {
    return outcome.total_weight > 0 && std::isfinite(outcome.total_weight * group_->world());
}

StepOutcome Context::exchange(bool joined) {
    return exchange_step(*group_, number_->tag(), {weight_, own_steps_, joined, reducer_->parts().sync});
}

void Context::follow(const StepOutcome& outcome) {
    if (model_.options.stop_at_first_join && outcome.first_joined >= 0)
        throw CallError({DDP_ERROR_UNEVEN_INPUTS,
                         str("rank ", outcome.first_joined,
                             " has no more inputs, and with DDP_CONTEXT_STOP_AT_FIRST_JOIN all ranks stop then"),
                         outcome.first_joined, -1, -1, reducer_->parts().totals.steps});
    joined_ = outcome.first_joined;
    reducer_->rebuild_if_due(outcome.first_present);
    send_buffers(outcome.first_present);
    reducer_->begin(pack_factor(outcome), outcome.sync);
}

// The reducer takes the mean over all ranks. By this the gradients are multiplied, so that it becomes the mean that is
// wanted.
double Context::pack_factor(const StepOutcome& outcome) const {
    const double world = group_->world();
    if (model_.options.weighted) return weight_ * world / outcome.total_weight;
    return model_.options.divide_by_present ? world / outcome.present : 1.0;
}

void Context::send_buffers(std::int32_t root) {
    if (!model_.options.buffer_broadcast || buffers_sent_after_ >= reducer_->parts().totals.synced_steps) return;
    if (buffer_hook_.fn) {
        if (!model_.table.buffers().empty()) call_buffer_hook();
    } else {
        broadcast_state(*group_, number_->tag(), model_.streams, model_.buffers(), root);
    }
    buffers_sent_after_ = reducer_->parts().totals.synced_steps;
}

void Context::call_buffer_hook() {
    std::vector<ddp_tensor> tensors;
    for (const auto& b : model_.table.buffers())
        tensors.push_back({sizeof(ddp_tensor), b.data, b.shape.data(), static_cast<std::int32_t>(b.shape.size()),
                           b.dtype, b.count, b.device, -1, 0});
    ddp_group handle{group_};
    ddp_error* error = nullptr;
    const ScopedTag scope(number_->tag());
    const ddp_status status =
        buffer_hook_.fn(buffer_hook_.user_data.get(), &handle, tensors.data(), tensors.size(), &error);
    if (status == DDP_OK) return;
    throw Error(group_->break_everywhere(on_rank(group_->rank(), take_user_error(status, error, "the buffer hook"))));
}

void Context::set_weight(double weight) {
    require_between_steps();
    if (!model_.options.weighted)
        fail_call(DDP_ERROR_INVALID_STATE, "the context was not created with DDP_REDUCTION_WEIGHTED_MEAN");
    if (!std::isfinite(weight) || weight < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "weight is ", weight, "; it must be finite and not negative");
    if (auto* reducer = this->reducer()) reducer->require_not_begun();
    weight_ = weight;
}

}  // namespace libddp
