#include "elastic/open_step.h"

#include "comm/link.h"
#include "util/log.h"

namespace libddp {

OpenStep::Marks OpenStep::marks_of(const Context& context) {
    const Reducer& reducer = context.committed();
    return {reducer.parts().totals.steps, reducer.parts().totals.results, context.hook()->steps()};
}

void OpenStep::begin(Group& group) {
    begun_ = true;
    if (parts_.averager_goes_back()) open_ = false;
    if (parts_.averager_goes_back() || open_) return;
    if (parts_.averager()) averager_steps_ = parts_.averager()->steps();
    copied_ = !parts_.kept() && (!has_committed_ || needs_copies_ || parts_.come_early());
    copied_ ? state_.take(parts_.state()) : state_.forget();
    if (!parts_.kept()) buffers_.take(parts_.buffers());
    marks_.clear();
    for (const Context* context : parts_.contexts()) marks_.push_back(marks_of(*context));
    operations_ = group.link(0)->counts().given();
    successes_ = group.link(0)->counts().successes_expected();
    open_ = true;
    undone_ = false;
}

std::int64_t OpenStep::results_since_begin(std::size_t context) const {
    return parts_.contexts()[context]->committed().parts().totals.results - marks_[context].results;
}

bool OpenStep::uses_contexts() const {
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        const Reducer& reducer = parts_.contexts()[i]->committed();
        if (!reducer.idle() || reducer.parts().totals.steps != marks_[i].steps) return true;
    }
    return false;
}

// Without contexts the program reduces gradients itself: with the first collective that succeeds,
// for all that is known.
bool OpenStep::in_doubt(Group& group) const {
    if (!open_) return false;
    if (marks_.empty()) return group.link(0)->counts().successes() > successes_;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        Reducer& reducer = parts_.contexts()[i]->committed();
        if (results_since_begin(i) > 0 || (!reducer.idle() && reducer.results().come_early()))
            return true;
    }
    return false;
}

// Whether any context has given means since the begin.
bool OpenStep::has_results() const {
    for (std::size_t i = 0; i < marks_.size(); ++i)
        if (results_since_begin(i) > 0) return true;
    return false;
}

// Whether the program has called nothing that another rank can make fail since it had the means.
bool OpenStep::is_plain(Group& group) const {
    const Link& link = *group.link(0);
    if (!uses_contexts()) return link.counts().given() <= operations_ + 1;
    std::int64_t results = 0;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        const std::int64_t here = results_since_begin(i);
        if (here > 0 && parts_.contexts()[i]->committed().parts().totals.operations_at_result !=
                            link.counts().given())
            return false;
        results += here;
    }
    return results <= 1;
}

void OpenStep::commit(Group& group, std::int64_t number) {
    if (!needs_copies_ && !parts_.averager_goes_back() && !parts_.kept()) {
        const bool used = !is_plain(group);
        needs_copies_ = used || (parts_.in_window() && has_results());
        if (needs_copies_)
            log(LogLevel::kInfo, "step ", number,
                used ? " used the group between ddp_finalize and ddp_elastic_commit, where a rank "
                       "may be lost: each step"
                     : " had means of one context while another accumulates gradients, so a loss "
                       "takes back more than one step: each window",
                " begins with a copy of the job's state from now on, of ", bytes_of(parts_.state()),
                " bytes");
    }
    begun_ = false;
    if (!parts_.in_window()) {
        open_ = false;
        window_steps_ = 0;
        has_committed_ = true;
        return;
    }
    ++window_steps_;
}

bool OpenStep::undo(Group& group) {
    begun_ = false;
    window_steps_ = 0;
    if (parts_.averager_goes_back() || parts_.kept()) open_ = false;
    if (!open_) return true;
    if (parts_.averager()) parts_.averager()->set_steps(averager_steps_);
    const bool lost = !copied_ && in_doubt(group);
    open_ = false;
    undone_ = true;
    if (copied_) fill_blocks(parts_.state(), state_.data());
    fill_blocks(parts_.buffers(), buffers_.data());
    return !lost;
}

void OpenStep::take_hooks_back() const {
    if (!undone_) return;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        Hook& hook = *parts_.contexts()[i]->hook();
        if (hook.steps() > marks_[i].hook_steps) hook.resume(marks_[i].hook_steps);
    }
}

}  // namespace libddp
