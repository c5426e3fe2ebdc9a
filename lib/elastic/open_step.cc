#include "elastic/open_step.h"

#include "comm/link.h"

namespace libddp {

OpenStep::Marks OpenStep::marks_of(const Context& context) {
    const Reducer& reducer = context.committed();
    return {reducer.parts().totals.steps, reducer.parts().totals.results, context.hook()->steps()};
}

void OpenStep::begin(const Parts& parts, Group& group, bool copies) {
    if (open_) return;
    copies ? state_.take(parts.state) : state_.forget();
    copied_ = copies;
    buffers_.take(parts.buffers);
    marks_.clear();
    for (const Context* context : parts.contexts) marks_.push_back(marks_of(*context));
    operations_ = group.link(0)->counts().given();
    successes_ = group.link(0)->counts().successes_expected();
    open_ = true;
    undone_ = false;
}

std::int64_t OpenStep::results_since_begin(const Parts& parts, std::size_t context) const {
    return parts.contexts[context]->committed().parts().totals.results - marks_[context].results;
}

bool OpenStep::uses_contexts(const Parts& parts) const {
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        const Reducer& reducer = parts.contexts[i]->committed();
        if (!reducer.idle() || reducer.parts().totals.steps != marks_[i].steps) return true;
    }
    return false;
}

// Without contexts the program reduces gradients itself: with the first collective that succeeds, for all that is known.
bool OpenStep::in_doubt(const Parts& parts, Group& group) const {
    if (!open_) return false;
    if (marks_.empty()) return group.link(0)->counts().successes() > successes_;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        Reducer& reducer = parts.contexts[i]->committed();
        if (results_since_begin(parts, i) > 0 || (!reducer.idle() && reducer.results().come_early())) return true;
    }
    return false;
}

bool OpenStep::has_results(const Parts& parts) const {
    for (std::size_t i = 0; i < marks_.size(); ++i)
        if (results_since_begin(parts, i) > 0) return true;
    return false;
}

bool OpenStep::is_plain(const Parts& parts, Group& group) const {
    const Link& link = *group.link(0);
    if (!uses_contexts(parts)) return link.counts().given() <= operations_ + 1;
    std::int64_t results = 0;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        const std::int64_t here = results_since_begin(parts, i);
        if (here > 0 && parts.contexts[i]->committed().parts().totals.operations_at_result != link.counts().given())
            return false;
        results += here;
    }
    return results <= 1;
}

bool OpenStep::undo(const Parts& parts, Group& group) {
    if (!open_) return true;
    const bool lost = !copied_ && in_doubt(parts, group);
    open_ = false;
    undone_ = true;
    if (copied_) fill_blocks(parts.state, state_.data());
    fill_blocks(parts.buffers, buffers_.data());
    return !lost;
}

void OpenStep::take_hooks_back(const Parts& parts) const {
    if (!undone_) return;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        Hook& hook = *parts.contexts[i]->hook();
        if (hook.steps() > marks_[i].hook_steps) hook.resume(marks_[i].hook_steps);
    }
}

void OpenStep::commit() {
    open_ = false;
}

}  // namespace libddp
