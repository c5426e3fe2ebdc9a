// A job whose ranks come and go: a group for each roster, contexts that move to it, and one history
// of steps.
//
// A step is applied by all who stay, or by none. Ranks that had committed it when the group broke
// are ahead by one step. In the next roster the others take the state from them. If nobody is
// ahead, all undo what they have of it (open_step.h) and do it again. A rank that cannot undo it
// does not know which state it has, and takes that of the others.
//
// A window is a run of unsynced steps of contexts with the synced step that ends it. Accumulated
// gradients are not part of the state. So ranks join and leave only between windows, and a loss
// within a window takes all ranks back to its first step, as if it were one step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/elastic.h"
#include "elastic/handover.h"
#include "elastic/membership.h"
#include "elastic/open_step.h"
#include "elastic/parts.h"
#include "elastic/roster_groups.h"

namespace libddp {

class ElasticJob {
public:
    // config: of the groups; its rank, world, store, name and prefix are the job's. Throws Error.
    ElasticJob(std::shared_ptr<Store> store, GroupConfig config, const MembershipOptions& options);

    // The group of this roster. Before the first roster: this rank alone, for a context to be made
    // of.
    const std::shared_ptr<Group>& group() const { return group_; }
    // Before the first roster. Added objects must stay as long as the job.
    void add_context(Context& context);
    // Ranks then train apart. A rank that joins begins at the last outer step, and after a loss all
    // do.
    void add_averager(Averager& averager);
    void add_state(StateBlock block);
    // The steps that this process has applied, from a checkpoint for example. Before the first
    // roster.
    void set_steps(std::int64_t steps);

    // The beginning of a step: if the group has broken or members come or go, waits for the next
    // roster, and this rank has the state of the job. Throws Error: of the membership, or MISMATCH
    // if ranks have another model or other states.
    void begin();
    // This rank has applied the step. Throws INVALID_STATE if it cannot have, and as
    // Membership::confirm.
    void commit();
    // Throws INVALID_STATE before the first roster, and as Membership::confirm.
    void confirm_member();
    // Semantics: include/ddp/elastic.h.
    void keep_shards(const Context& context, std::vector<StateArray> arrays, std::int64_t step,
                     ddp_keep where);
    bool recall_shards(const Context& context, const std::vector<StateArray>& arrays);

    std::int64_t steps() const { return std::max<std::int64_t>(applied_.count, 0); }
    const Roster& roster() const { return membership_.roster(); }
    // It began with the last begin().
    bool changed() const { return changed_; }

    // From then on leaving() says when the others expect it, after begin().
    void announce_leave();
    bool leaving() const { return leaving_; }
    void leave();

private:
    JobParts& parts_before(const char* what);
    KeptShards& kept_of(const Context& context) const;
    void undo_step();
    void go_back();
    void begin_or_form();
    bool may_meet();
    void forget_gradients();
    void form();

    const RosterGroups groups_;
    Membership membership_;
    std::shared_ptr<Group> group_;
    JobParts parts_;
    OpenStep open_{parts_};
    AppliedSteps applied_;
    std::int64_t uncounted_ = 0;  // steps of the job that the averager has not counted
    // the first step of a window that was undone before the next roster
    std::int64_t undone_window_ = -1;
    // gradients are of steps that were undone, or that this process did in another job
    bool undone_ = true;
    std::int64_t waits_ = 0;  // steps for which somebody has waited for the end of a window
    bool formed_ = false;     // the group is that of the roster
    bool changed_ = false;
    bool leave_announced_ = false, leaving_ = false;
};

}  // namespace libddp
