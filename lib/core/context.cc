#include "core/context.h"

#include <algorithm>

#include "core/agreement.h"
#include "core/plan.h"
#include "device/device.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

// Gradients that are reduced in place share a bucket where they lie in one range of memory on all
// ranks of the group.
void agree_on_ranges(ParamTable& table, Group& group, const OpTag& of) {
    if (table.any_in_place()) table.set_follows(agree_on_neighbours(group, of, table.neighbours()));
}

// Throws UNSUPPORTED if what was asked for needs the gradients of all ranks.
void require_reducing(const Model& model, const Hook& hook) {
    if (hook.keeps_models_alike()) return;
    if (model.options.reducer.shard)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_SHARD the owner of an element needs the "
                  "gradients of all ranks, and the hook ",
                  hook.name(), " does not reduce them");
    if (!model.norms.empty())
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "ddp_track_grad_norm asks for norms of what all ranks reduce, and the hook ",
                  hook.name(), " does not reduce gradients");
}

void require_joinable(const ReducerParts& parts) {
    const ContextOptions& options = parts.model.options;
    if (options.join && options.reducer.shard && parts.totals.in_step == 0)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "with DDP_CONTEXT_JOIN and DDP_CONTEXT_SHARD a rank in ddp_join updates what it "
                  "owns only if that happens in the step; call ddp_optimizer_in_step or "
                  "ddp_set_update first");
}

}  // namespace

std::vector<std::int32_t> Context::register_params(std::vector<Param> params) {
    require_building();
    for (Param& param : params) model_.copy_if_checked(param);
    return model_.table.add_params(std::move(params));
}

Model& Context::building() {
    require_building();
    return model_;
}

// Its first parameter that is frozen; -1: none.
void Context::introduce(ContextNumber& number) const {
    number.set_param_names(model_.param_names());
    const auto* reducer = this->reducer();
    const auto& frozen = building_.frozen;
    std::int32_t first = 0;
    const auto is_frozen = [&](std::int32_t id) {
        return reducer ? reducer->parts().participation.frozen(id)
                       : std::find(frozen.begin(), frozen.end(), id) != frozen.end();
    };
    while (first < model_.table.size() && !is_frozen(first)) ++first;
    number.set_frozen(first < model_.table.size() ? first : -1);
}

void Context::commit() {
    require_building();
    group_->require_unbroken();
    introduce(*number_);
    model_.complete_norms();
    std::string header = model_.text();
    const auto& plan_text = building_.plan_text;
    if (plan_text) header += str(", adopted plan ", std::hex, Hash().add(*plan_text).value());
    agree_on_model(*group_, number_->tag(), header, model_.table.lines());
    require_reducing(model_, *building_.hook);
    attendance_.enter(*group_, *number_);
    model_.check();  // after the ranks have compared their tables, so that all of them fail
    for (const Param* p : model_.all()) model_.streams.require(p->device);
    const StreamScope order(model_.streams);
    agree_on_ranges(model_.table, *group_, number_->tag());
    std::optional<Planner::Buckets> planned;
    if (plan_text)
        in_call("ddp_plan_adopt, read by ddp_commit",
                [&] { planned = plan_from_text(*plan_text, model_.table); });
    if (model_.options.initial_broadcast)
        broadcast_state(*group_, number_->tag(), model_.streams, model_.all(), 0);
    reducer_ = std::make_unique<Reducer>(group_, *number_, model_, building_.hook, building_.frozen,
                                         std::move(planned));
    building_.hook = {};
    reducer_->results().set_callback(std::move(building_.reduced));
    reducer_->set_sync(building_.sync);
    // New views are there for every stream of the caller's, not only for those that libddp knows.
    model_.streams.wait(group_->timeout_ms(), [this] { group_->check_in_wait("a device"); });
    committed_.store(reducer_.get(), std::memory_order_release);
}

void Context::set_stream(const ddp_device& device, void* stream) {
    if (is_cpu(device))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "kind is DDP_DEVICE_CPU, which has no streams");
    require_between_steps();
    model_.streams.require(device)->set_caller(stream);
}

void Context::set_sync(bool sync) {
    if (auto* reducer = this->reducer())
        reducer->set_sync(sync);
    else
        building_.sync = sync;
}

void Context::require_between_steps() const {
    if (auto* reducer = this->reducer()) reducer->require_idle();
}

const HookPtr& Context::hook() const {
    auto* reducer = this->reducer();
    return reducer ? reducer->parts().hook.hook() : building_.hook;
}

void Context::set_hook(HookPtr hook) {
    if (!hook) hook = std::make_shared<AllreduceHook>();
    require_reducing(model_, *hook);
    hook_name_ = hook->name();
    if (auto* reducer = this->reducer())
        reducer->set_hook(std::move(hook));
    else
        building_.hook = std::move(hook);
}

void Context::set_reduced_callback(ReducedCallback callback) {
    if (auto* reducer = this->reducer())
        reducer->results().set_callback(std::move(callback));
    else
        building_.reduced = std::move(callback);
}

void Context::set_frozen(const std::vector<std::int32_t>& params, bool frozen) {
    for (auto id : params) model_.table.require(id);
    if (auto* reducer = this->reducer()) {
        reducer->set_frozen(params, frozen);
        introduce(*number_);
        return;
    }
    for (auto id : params) {
        std::erase(building_.frozen, id);
        if (frozen) building_.frozen.push_back(id);
    }
}

void Context::set_group(std::shared_ptr<Group> group) {
    Reducer& reducer = committed();
    if (!group_->broken()) reducer.require_idle();
    group->require_unbroken();
    reducer.leave_group(*group);
    auto number = std::make_unique<ContextNumber>(group);
    introduce(*number);
    agree_on_model(*group, number->tag(), model_.text(), model_.table.lines());
    attendance_.enter(*group, *number);
    agree_on_ranges(model_.table, *group, number->tag());
    group_ = group;
    number_ = std::move(number);
    const StreamScope order(model_.streams);
    reducer.set_group(std::move(group), *number_);
    buffers_.set_equal(reducer.parts().totals.synced_steps);
    attendance_.start_over();
    last_error_ = DDP_OK;
}

void Context::adopt_plan(const std::string& text) {
    auto* reducer = this->reducer();
    if (!reducer) {
        building_.plan_text = text;
        return;
    }
    Planner& planner = reducer->planner();
    planner.adopt(plan_from_text(text, model_.table));
}

Reducer& Context::committed() const {
    auto* reducer = this->reducer();
    if (!reducer)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context is still being built; call ddp_commit first");
    return *reducer;
}

void Context::require_building() const {
    if (reducer())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context is committed already; its parameters can no longer change");
}

void Context::step_begin() {
    Reducer& reducer = committed();
    group_->check();
    reducer.require_idle();
    const bool captured = model_.streams.captured();
    reducer.forget_capture(captured);
    if (captured) return;
    require_joinable(reducer.parts());
    const StreamScope order(model_.streams);
    if (!model_.exchanges()) {
        reducer.rebuild_if_due(0);
        buffers_.send(group_, *number_, 0, reducer.parts().totals.synced_steps);
        return;
    }
    const ReducerParts& parts = reducer.parts();
    attendance_.require_known(!model_.streams.empty(), parts.totals.steps);
    const StepOutcome outcome =
        attendance_.exchange(*group_, *number_, true, parts.sync, parts.totals.clock);
    if (!Attendance::has_mean(*group_, outcome))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the weights of all ranks (ddp_set_weight) sum to ",
                  outcome.total_weight, ", so there is no mean");
    follow(outcome, true);
}

// A rank without inputs cannot know: it ends the step as every other.
void Context::discard_step() {
    step_call([this](Reducer& reducer) {
        if (attendance_.joined() >= 0 && !group_->broken())
            throw CallError({DDP_ERROR_UNSUPPORTED,
                             str("rank ", attendance_.joined(),
                                 " is in ddp_join, and cannot discard the step with the others; "
                                 "end it with ddp_finalize, and give zeros where there is no "
                                 "gradient, or create the context with DDP_CONTEXT_SKIP_NONFINITE"),
                             attendance_.joined()});
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
    require_joinable(reducer.parts());
    const StreamScope order(model_.streams);
    const auto exchange = [&] {
        return attendance_.exchange(*group_, *number_, false, reducer.parts().sync,
                                    reducer.parts().totals.clock);
    };
    StepOutcome outcome;
    for (outcome = exchange(); outcome.present > 0; outcome = exchange()) {
        if (!Attendance::has_mean(*group_, outcome))
            continue;  // the others were told in ddp_step_begin and begin again
        follow(outcome, false);
        reducer.results().shadow();
    }
    attendance_.start_over();
    // Values of the last step must not come after those that are sent now.
    for (std::int32_t id = 0; id < model_.table.size(); ++id)
        reducer.results().wait_value(id, std::nullopt);
    broadcast_state(*group_, number_->tag(), model_.streams, model_.all(), outcome.last_to_join);
    buffers_.set_equal(reducer.parts().totals.synced_steps);
}

void Context::follow(const StepOutcome& outcome, bool inputs) {
    const Totals& totals = reducer_->parts().totals;
    attendance_.begin(outcome, inputs, totals.steps);
    reducer_->rebuild_if_due(outcome.first_present);
    buffers_.send(group_, *number_, outcome.first_present, totals.synced_steps);
    const auto [begin, end] = attendance_.share(*group_, /*next=*/false);
    reducer_->begin(attendance_.factor(*group_, outcome), outcome.sync, end - begin);
}

}  // namespace libddp
