// The beginning of a step: what ranks exchange there, rebuilds, buffers; and ranks that run out of inputs.
#include <cmath>

#include "comm/verdict.h"
#include "core/context.h"
#include "core/state_broadcast.h"
#include "util/error_object.h"

namespace libddp {

std::string ContextOptions::text() const {
    const auto& r = reducer;
    std::string caps;
    for (std::size_t i = 0; i < r.caps.size(); ++i) caps += str(i ? " " : "", r.caps[i]);
    std::string result = str("options bucket caps ", caps, ", reduction ",
                             weighted ? "weighted mean"
                             : r.mean ? "mean"
                                      : "sum");
    const std::pair<bool, const char*> facts[] = {{!r.rebuild, "no rebuild"},
                                                  {!initial_broadcast, "no initial broadcast"},
                                                  {!buffer_broadcast, "no buffer broadcast"},
                                                  {r.find_unused, "find unused"},
                                                  {r.static_graph, "static graph"},
                                                  {r.votes, "skip unused buckets"},
                                                  {join, "join"},
                                                  {divide_by_present, "divide by present"},
                                                  {stop_at_first_join, "stop at first join"},
                                                  {r.consensus_order, "consensus order"}};
    for (const auto& [holds, text] : facts)
        if (holds) result += str(", ", text);
    if (r.rebuild_interval > 0) result += str(", rebuild interval ", r.rebuild_interval);
    if (r.check) result += str(", check with interval ", r.check_interval, " (DDP_CONTEXT_CHECK or DDP_DEBUG)");
    return result;
}

void Context::step_begin() {
    constexpr const char* call = "ddp_step_begin";
    Reducer& reducer = committed(call);
    group_->check();
    reducer.require_idle(call);
    const LaneScope order(lanes_, call);
    if (!exchanges()) {
        rebuild_if_due(0);
        send_buffers(0);
        return;
    }
    const StepOutcome outcome = exchange(false);
    if (!has_mean(outcome))
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": the weights of all ranks (ddp_set_weight) sum to ",
             outcome.total_weight, ", so there is no mean");
    follow(outcome, call);
    ++own_steps_;
}

void Context::join() {
    constexpr const char* call = "ddp_join";
    Reducer& reducer = committed(call);
    group_->check();
    reducer.require_idle(call);
    if (!options_.join)
        fail(DDP_ERROR_INVALID_STATE, call,
             ": create the context with DDP_CONTEXT_JOIN, so that the other ranks expect this");
    const LaneScope order(lanes_, call);
    StepOutcome outcome;
    for (outcome = exchange(true); outcome.present > 0; outcome = exchange(true)) {
        if (!has_mean(outcome)) continue;  // the others were told in ddp_step_begin and begin again
        follow(outcome, call);
        reducer.shadow();
    }
    broadcast_state(*group_, lanes_, state(), outcome.last_to_join);
    buffers_sent_after_ = reducer.synced_steps();
    own_steps_ = 0;
}

bool Context::has_mean(const StepOutcome& outcome) const {
    return outcome.total_weight > 0 && std::isfinite(outcome.total_weight * group_->world());
}

StepOutcome Context::exchange(bool joined) {
    return exchange_step(*group_, {weight_, own_steps_, joined, reducer_->sync()});
}

void Context::follow(const StepOutcome& outcome, const char* call) {
    if (options_.stop_at_first_join && outcome.first_joined >= 0)
        throw Error({DDP_ERROR_UNEVEN_INPUTS,
                     str(call, ": rank ", outcome.first_joined,
                         " has no more inputs, and with "
                         "DDP_CONTEXT_STOP_AT_FIRST_JOIN all ranks stop then"),
                     outcome.first_joined, -1, -1, reducer_->steps()});
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
        broadcast_state(*group_, lanes_, entries, root);
    }
    buffers_sent_after_ = reducer_->synced_steps();
}

void Context::call_buffer_hook() {
    std::vector<ddp_tensor> tensors;
    for (const auto& b : table_.buffers())
        tensors.push_back({sizeof(ddp_tensor), b.data, b.shape.data(), static_cast<std::int32_t>(b.shape.size()),
                           b.dtype, b.count, b.device, -1, 0});
    ddp_group handle{group_};
    ddp_error* error = nullptr;
    const ddp_status status =
        buffer_hook_.fn(buffer_hook_.user_data.get(), &handle, tensors.data(), tensors.size(), &error);
    if (status == DDP_OK) return;
    throw Error(group_->break_everywhere(on_rank(group_->rank(), take_user_error(status, error, "the buffer hook"))));
}

void Context::set_weight(double weight) {
    constexpr const char* call = "ddp_set_weight";
    require_between_steps(call);
    if (!options_.weighted)
        fail(DDP_ERROR_INVALID_STATE, call, ": the context was not created with DDP_REDUCTION_WEIGHTED_MEAN");
    if (!std::isfinite(weight) || weight < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": weight is ", weight, "; it must be finite and not negative");
    if (auto* reducer = this->reducer()) reducer->require_not_begun(call);
    weight_ = weight;
}

}  // namespace libddp
