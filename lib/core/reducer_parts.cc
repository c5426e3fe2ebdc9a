#include "core/reducer_parts.h"

#include <utility>

#include "comm/link.h"

namespace libddp {

ReducerParts::ReducerParts(std::shared_ptr<Group> of, const ContextNumber& with,
                           const Model& trained, HookPtr first, Observers asked_for)
    : model(trained),
      group(std::move(of)),
      number(&with),
      participation(model.table),
      planner(model, participation),
      gradients(model),
      hook(group, with, std::move(first)),
      observers(std::move(asked_for)),
      queue(hook, gradients, observers.votes) {
    totals.used.resize(model.table.params().size());
}

void ReducerParts::use_layout() {
    gradients.reset_layout(*layout);
    queue.reset_layout(layout.get(), model.table);
    for (const auto& observer : observers.all) observer->on_layout(*this);
    next_step(step ? step->begin : Step::Begin{});
}

Phase ReducerParts::begin_step() {
    if (model.options.reducer.needs_begin && !step->begin.told)
        refuse_in_step(
            str("step ", totals.steps,
                " has not begun; with DDP_CONTEXT_JOIN or DDP_REDUCTION_WEIGHTED_MEAN every "
                "step starts with ddp_step_begin"));
    for (const auto& observer : observers.all) observer->on_begin(*this);
    Phase expected = Phase::kIdle;
    const bool synced = step->begin.told ? step->begin.sync : sync;
    const Phase wanted = synced ? Phase::kFilling : Phase::kFillingLocal;
    if (!phase.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel))
        return expected;
    totals.clock.first_gradient();
    recorder.write({record::EventKind::kStepBegin, totals.steps, -1,
                    static_cast<std::uint64_t>(step->begin.share), 0, synced});
    return wanted;
}

void ReducerParts::refuse_in_step(const std::string& text) const {
    throw CallError({DDP_ERROR_INVALID_STATE, text, -1, -1, -1, totals.steps});
}

void ReducerParts::next_step(Step::Begin begin) {
    step.emplace(totals.steps, totals.synced_steps,
                 model.options.reducer.skip_unused && group->world() > 1, begin);
    gradients.begin_step(participation);
    queue.begin_step(*step, participation);
    step->agreement ^= totals.update ^ totals.in_step;
}

void ReducerParts::forget_step() {
    gradients.forget_step();
    for (const auto& observer : observers.all) observer->on_forget();
}

void ReducerParts::end_step() {
    forget_step();
    next_step();
    phase.store(Phase::kIdle, std::memory_order_release);
}

Unused* ReducerParts::discovering() const {
    return model.options.reducer.find_unused || !participation.recorded() ? observers.unused
                                                                          : nullptr;
}

void ReducerParts::count_result() {
    ++totals.results;
    totals.operations_at_result = group->link(0)->counts().given_if_all_ended();
}

}  // namespace libddp
