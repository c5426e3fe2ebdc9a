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
    copy_if_checked(param);
    return table_.add_param(std::move(param));
}

// All or none.
std::vector<std::int32_t> Context::register_params(std::vector<Param> params) {
    building();
    ParamTable table = table_;
    std::vector<std::int32_t> ids;
    for (Param& param : params) {
        copy_if_checked(param);
        ids.push_back(table.add_param(std::move(param)));
    }
    table_ = std::move(table);
    return ids;
}

void Context::introduce(ContextNumber& number) const {
    std::vector<std::string> names;
    for (const Param& p : table_.params()) names.push_back(p.name);
    number.set_param_names(names);
    number.set_frozen(first_frozen());
}

std::int32_t Context::first_frozen() const {
    if (const auto* reducer = this->reducer()) {
        for (std::int32_t id = 0; id < table_.size(); ++id)
            if (reducer->participation().frozen(id)) return id;
        return -1;
    }
    return frozen_.empty() ? -1 : *std::min_element(frozen_.begin(), frozen_.end());
}

// What is checked is copied, so that what the program writes is never what is reduced.
void Context::copy_if_checked(Param& param) const {
    if (options_.reducer.check && param.place) param.grad = std::exchange(param.place, nullptr);
}

void Context::register_buffer(Param buffer) {
    building();
    table_.add_buffer(std::move(buffer));
}

void Context::commit() {
    building();
    group_->require_unbroken();
    introduce(*number_);
    std::string header = options_.text();
    if (plan_text_) header += str(", adopted plan ", std::hex, Hash().add(*plan_text_).value());
    agree_on_model(*group_, number_->tag(), header, table_.lines());
    check_table();
    for (const Param* p : state()) streams_.require(p->device);
    const StreamScope order(streams_);
    agree_on_ranges(*group_, number_->tag());
    std::optional<std::vector<std::vector<std::int32_t>>> planned;
    if (plan_text_)
        in_call("ddp_plan_adopt, read by ddp_commit", [&] { planned = plan_from_text(*plan_text_, table_); });
    if (options_.initial_broadcast) broadcast_state(*group_, number_->tag(), streams_, state(), 0);
    reducer_ = std::make_unique<Reducer>(group_, *number_, table_, streams_, options_.reducer, hook_, frozen_,
                                         std::move(planned));
    hook_ = {};
    reducer_->set_reduced_callback(std::move(reduced_));
    reducer_->set_sync(sync_);
    wait_for_devices();
    committed_.store(reducer_.get(), std::memory_order_release);
}

// Of the gradients that are reduced in place: what lies in one range of memory on all ranks of the group.
void Context::agree_on_ranges(Group& group, const OpTag& of) {
    if (table_.any_in_place()) table_.set_follows(agree_on_neighbours(group, of, table_.neighbours()));
}

// After the ranks have compared their tables, so that all of them fail.
void Context::check_table() const {
    bool any = false;
    for (const Param& p : table_.params()) {
        any = any || !p.ignored;
        if (const char* check = what_checks(); check && !p.ignored && !is_cpu(p.device))
            fail_call(DDP_ERROR_UNSUPPORTED, "parameter '", p.name, "' is on ", device_name(p.device), ", and ", check,
                      " looks at memory of the CPU only; train without it, or on the CPU");
        if (p.ignored || is_floating(p.dtype)) continue;
        if (options_.weighted || options_.divide_by_present)
            fail_call(DDP_ERROR_UNSUPPORTED, "parameter '", p.name, "' is ", dtype_name(p.dtype), ", and ",
                      options_.weighted ? "DDP_REDUCTION_WEIGHTED_MEAN" : "DDP_CONTEXT_DIVIDE_BY_PRESENT",
                      " needs floating-point gradients");
    }
    for (const Param& b : table_.buffers())
        if (options_.reducer.verify_buffers && !is_cpu(b.device))
            fail_call(DDP_ERROR_UNSUPPORTED, "buffer '", b.name, "' is on ", device_name(b.device),
                      ", and DDP_CONTEXT_VERIFY_BUFFERS looks at memory of the CPU only");
    if (!any) fail_call(DDP_ERROR_INVALID_STATE, "no parameter was registered that is not ignored");
}

// The name of what reads gradients or values of parameters; null: nothing does.
const char* Context::what_checks() const {
    const ReducerOptions& r = options_.reducer;
    if (r.check) return "DDP_CONTEXT_CHECK (or DDP_DEBUG=check)";
    if (r.nonfinite == Nonfinite::kRefuse) return "DDP_CONTEXT_REFUSE_NONFINITE";
    if (r.nonfinite == Nonfinite::kSkip) return "DDP_CONTEXT_SKIP_NONFINITE";
    return r.verify_interval > 0 ? "verify_interval" : nullptr;
}

std::vector<const Param*> Context::state() const {
    std::vector<const Param*> entries;
    for (const auto& p : table_.params()) entries.push_back(&p);
    for (const auto& b : table_.buffers()) entries.push_back(&b);
    return entries;
}

// New views are there for every stream of the caller's, not only for those that libddp knows.
void Context::wait_for_devices() const {
    streams_.wait(group_->timeout_ms(), [this] { group_->check_in_wait("a device"); });
}

void Context::set_stream(const ddp_device& device, void* stream) {
    if (is_cpu(device)) fail_call(DDP_ERROR_INVALID_ARGUMENT, "kind is DDP_DEVICE_CPU, which has no streams");
    require_between_steps();
    streams_.require(device)->set_caller(stream);
}

void Context::finalize_enqueue() {
    step_call([](Reducer& r) { r.finalize_enqueue(); });
}

void Context::finalize_on(void* stream) {
    committed();
    if (streams_.all().size() > 1)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the parameters lie on ", streams_.all().size(),
                  " devices; name each one's stream with ddp_set_stream, and call ddp_finalize_enqueue");
    const CallerScope scope(streams_.all().empty() ? nullptr : streams_.all().front().get(), stream);
    step_call([](Reducer& r) { r.finalize_enqueue(); });
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
    return reducer ? reducer->queue().hook() : hook_;
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
    streams_.gather();
    HookState state;
    hook()->save(state);
    return write_hook_state(state, {hook_name_, group_->rank(), group_->world()}, table_, group_->timeout_ms());
}

void Context::load_hook_state(const std::byte* data, std::size_t size, bool shared_only) {
    committed();
    HookState state = read_hook_state(data, size, {hook_name_, group_->rank(), group_->world()}, table_, shared_only);
    streams_.gather();
    state.copies = std::make_shared<HostCopies>(group_->timeout_ms());
    for (auto& array : state.arrays)
        if (array.param >= 0) array.home = streams_.stream(table_[array.param].device);
    hook()->load(state);
}

void Context::set_reduced_callback(ReducedCallback callback) {
    if (auto* reducer = this->reducer())
        reducer->set_reduced_callback(std::move(callback));
    else
        reduced_ = std::move(callback);
}

void Context::set_frozen(const std::vector<std::int32_t>& params, bool frozen) {
    for (auto id : params) table_.require(id);
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
    if (options_.join)
        fail_call(DDP_ERROR_UNSUPPORTED, "with DDP_CONTEXT_JOIN a rank without inputs could not know the choice");
    if (authority < -1 || authority >= group_->world())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "authority is ", authority, "; it must be a rank from 0 to ",
                  group_->world() - 1, ", or -1");
    for (auto id : params) table_.require(id);
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
        for (auto id : params) table_.require(id);
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
    agree_on_model(*group, number->tag(), options_.text(), table_.lines());
    agree_on_ranges(*group, number->tag());
    group_ = group;
    number_ = std::move(number);
    const StreamScope order(streams_);
    reducer.set_group(std::move(group), *number_);
    buffers_sent_after_ = reducer.synced_steps();
    own_steps_ = 0;  // values are equal again, or the program makes them so
    joined_ = -1;
    last_error_ = DDP_OK;
}

std::string Context::plan_text() const {
    return plan_to_text(committed().buckets().plan(), table_);
}

void Context::adopt_plan(const std::string& text) {
    if (auto* reducer = this->reducer()) return reducer->adopt_plan(plan_from_text(text, table_));
    plan_text_ = text;
}

void Context::abort(const std::string& reason) {
    group_->break_everywhere(
        {DDP_ERROR_ABORTED,
         str("rank ", group_->rank(), " called ddp_context_abort", reason.empty() ? "" : ": ", reason),
         group_->rank()});
}

std::vector<std::shared_ptr<const void>> Context::hold_layout() {
    return committed().view_memory();
}

void* Context::grad_view(std::int32_t param) {
    Reducer& reducer = committed();
    table_.require(param);
    if (table_[param].sparse || table_[param].ignored)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", table_[param].name, "' is ",
                  table_[param].sparse ? "sparse" : "ignored", " and has no place in a bucket");
    return reducer.view(param);
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
std::string ContextOptions::text() const {
    const auto& r = reducer;
    std::string caps;
    for (std::size_t i = 0; i < r.caps.size(); ++i) caps += str(i ? " " : "", r.caps[i]);
    std::string result = str("options bucket caps ", caps, ", reduction ",
                             weighted ? "weighted mean"
                             : r.mean ? "mean"
                                      : "sum");
    const std::pair<bool, const char*> facts[] = {{!r.rebuild, "no rebuild"},
                                                  {r.tune_caps, "autotune"},
                                                  {!initial_broadcast, "no initial broadcast"},
                                                  {!buffer_broadcast, "no buffer broadcast"},
                                                  {r.find_unused, "find unused"},
                                                  {r.static_graph, "static graph"},
                                                  {r.keep_local_unused, "keep local unused"},
                                                  {r.accumulate, "accumulate"},
                                                  {r.votes, "skip unused buckets"},
                                                  {join, "join"},
                                                  {divide_by_present, "divide by present"},
                                                  {stop_at_first_join, "stop at first join"},
                                                  {r.consensus_order, "consensus order"}};
    for (const auto& [holds, text] : facts)
        if (holds) result += str(", ", text);
    if (r.rebuild_interval > 0) result += str(", rebuild interval ", r.rebuild_interval);
    if (r.check) result += str(", check with interval ", r.check_interval, " (DDP_CONTEXT_CHECK or DDP_DEBUG)");
    if (r.verify_interval > 0)
        result += str(", verify interval ", r.verify_interval, r.verify_buffers ? " with buffers" : "");
    if (r.nonfinite != Nonfinite::kPass)
        result += r.nonfinite == Nonfinite::kSkip ? ", skip nonfinite" : ", refuse nonfinite";
    return result;
}

void Context::step_begin() {
    Reducer& reducer = committed();
    group_->check();
    reducer.require_idle();
    const StreamScope order(streams_);
    if (!exchanges()) {
        rebuild_if_due(0);
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
        reducer.discard();
    });
}

void Context::join() {
    Reducer& reducer = committed();
    group_->check();
    reducer.require_idle();
    if (!options_.join)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "create the context with DDP_CONTEXT_JOIN, so that the other ranks expect this");
    const StreamScope order(streams_);
    StepOutcome outcome;
    for (outcome = exchange(true); outcome.present > 0; outcome = exchange(true)) {
        if (!has_mean(outcome)) continue;  // the others were told in ddp_step_begin and begin again
        follow(outcome);
        reducer.shadow();
    }
    joined_ = -1;
    broadcast_state(*group_, number_->tag(), streams_, state(), outcome.last_to_join);
    buffers_sent_after_ = reducer.synced_steps();
    own_steps_ = 0;
}

bool Context::has_mean(const StepOutcome& outcome) const {
    return outcome.total_weight > 0 && std::isfinite(outcome.total_weight * group_->world());
}

StepOutcome Context::exchange(bool joined) {
    return exchange_step(*group_, number_->tag(), {weight_, own_steps_, joined, reducer_->sync()});
}

void Context::follow(const StepOutcome& outcome) {
    if (options_.stop_at_first_join && outcome.first_joined >= 0)
        throw CallError({DDP_ERROR_UNEVEN_INPUTS,
                         str("rank ", outcome.first_joined,
                             " has no more inputs, and with DDP_CONTEXT_STOP_AT_FIRST_JOIN all ranks stop then"),
                         outcome.first_joined, -1, -1, reducer_->steps()});
    joined_ = outcome.first_joined;
    rebuild_if_due(outcome.first_present);
    send_buffers(outcome.first_present);
    reducer_->begin(pack_factor(outcome), outcome.sync);
}

// The reducer takes the mean over all ranks. By this the gradients are multiplied, so that it becomes the mean that is
// wanted.
double Context::pack_factor(const StepOutcome& outcome) const {
    const double world = group_->world();
    if (options_.weighted) return weight_ * world / outcome.total_weight;
    return options_.divide_by_present ? world / outcome.present : 1.0;
}

void Context::rebuild_if_due(std::int32_t root) {
    if (reducer_->wants_rebuild()) reducer_->rebuild(root);
}

void Context::send_buffers(std::int32_t root) {
    if (!options_.buffer_broadcast || buffers_sent_after_ >= reducer_->synced_steps()) return;
    if (buffer_hook_.fn) {
        if (!table_.buffers().empty()) call_buffer_hook();
    } else {
        std::vector<const Param*> entries;
        for (const auto& b : table_.buffers()) entries.push_back(&b);
        broadcast_state(*group_, number_->tag(), streams_, entries, root);
    }
    buffers_sent_after_ = reducer_->synced_steps();
}

void Context::call_buffer_hook() {
    std::vector<ddp_tensor> tensors;
    for (const auto& b : table_.buffers())
        tensors.push_back({sizeof(ddp_tensor), b.data, b.shape.data(), static_cast<std::int32_t>(b.shape.size()),
                           b.dtype, b.count, b.device, -1, 0});
    // Pointers: the hook's program may know another size of the struct.
    std::vector<const ddp_tensor*> pointers;
    for (const ddp_tensor& tensor : tensors) pointers.push_back(&tensor);
    ddp_group handle{group_};
    ddp_error* error = nullptr;
    const ScopedTag scope(number_->tag());
    const ddp_status status =
        buffer_hook_.fn(buffer_hook_.user_data.get(), &handle, pointers.data(), pointers.size(), &error);
    if (status == DDP_OK) return;
    throw Error(group_->break_everywhere(on_rank(group_->rank(), take_user_error(status, error, "the buffer hook"))));
}

void Context::set_weight(double weight) {
    require_between_steps();
    if (!options_.weighted)
        fail_call(DDP_ERROR_INVALID_STATE, "the context was not created with DDP_REDUCTION_WEIGHTED_MEAN");
    if (!std::isfinite(weight) || weight < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "weight is ", weight, "; it must be finite and not negative");
    if (auto* reducer = this->reducer()) reducer->require_not_begun();
    weight_ = weight;
}

}  // namespace libddp
