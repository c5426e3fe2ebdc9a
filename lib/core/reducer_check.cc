// What DDP_CONTEXT_CHECK adds to a step. Where a mistake is found the group breaks, so that every rank reads of it.
#include "core/reducer.h"

namespace libddp {

std::byte* Reducer::view(std::int32_t param) const {
    return check_ && !table_[param].grad ? check_->view(param) : store_->place(param);
}

std::vector<std::shared_ptr<const void>> Reducer::view_memory() const {
    auto memory = store_->all_memory();
    if (check_) memory.push_back(check_->memory());
    return memory;
}

// Before results overwrite what the program has written.
void Reducer::examine(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors)
        if (auto error = check_->examine(tensor.param, state(tensor.param).grad, group_->rank(), steps_))
            throw Error(queue_.break_with(std::move(*error), static_cast<std::size_t>(bucket.index)));
}

// Behind the buckets, and before any of their results can have changed a value. A rank without inputs trails behind.
void Reducer::start_comparison() {
    const bool discards = discarding_ && !shadowing_;
    if (discards || group_->world() == 1 || !check_->compares_in(synced_steps_)) return;
    if (options_.keep_local_unused || !queue_.hook()->keeps_models_alike()) return;
    const ScopedTag tag(queue_.step_tag(Purpose::kValues));
    check_->start_comparison(*group_, !shadowing_);
}

// No rank goes on before all have found nothing: an error that one of them finds is that of this step on each.
void Reducer::end_check() {
    if (group_->world() == 1) return;
    const ScopedTag tag(queue_.step_tag(Purpose::kEndOfCheck));
    if (const auto error = check_->end_comparison(*group_, steps_)) throw Error(group_->break_everywhere(*error));
    group_->run({});
}

}  // namespace libddp
