// A job whose ranks come and go: a group for each roster, contexts that move to it, and one history of steps.
//
// A step is applied by all who stay, or by none. Ranks that had committed it when the group broke are ahead by one step. In the next roster
// the others take the state from them. If nobody is ahead, all undo what they have of it (open_step.h) and do it again. A rank that cannot
// undo it does not know which state it has, and takes that of the others.
//
// A window is a run of unsynced steps of contexts with the synced step that ends it. Accumulated gradients are not part of the state. So
// ranks join and leave only between windows, and a loss within a window takes all ranks back to its first step, as if it were one step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/group.h"
#include "core/averager.h"
#include "core/context.h"
#include "elastic/membership.h"
#include "elastic/open_step.h"
#include "elastic/state.h"

namespace libddp {

class ElasticJob {
public:
    // config: of the groups; its rank, world, store, name and prefix are the job's. Throws Error.
    ElasticJob(std::shared_ptr<Store> store, GroupConfig config, const MembershipOptions& options);

    // The group of this roster. Before the first roster: this rank alone, for a context to be made of.
    const std::shared_ptr<Group>& group() const { return group_; }
    // Before the first roster. Added objects must stay as long as the job.
    void add_context(Context& context);
    // Ranks then train apart. A rank that joins begins at the last outer step, and after a loss all do.
    void add_averager(Averager& averager);
    void add_state(StateBlock block);
    // The steps that this process has applied, from a checkpoint for example. Before the first roster.
    void set_steps(std::int64_t steps);

    // The beginning of a step: if the group has broken or members come or go, waits for the next roster, and this rank has the state
    // of the job. Throws Error: of the membership, or MISMATCH if ranks have another model or other states.
    void begin();
    // This rank has applied the step. Throws INVALID_STATE if it cannot have, and as Membership::confirm.
    void commit();
    // Throws INVALID_STATE before the first roster, and as Membership::confirm.
    void confirm_member();

    std::int64_t steps() const { return std::max<std::int64_t>(steps_, 0); }
    const Roster& roster() const { return membership_.roster(); }
    // It began with the last begin().
    bool changed() const { return changed_; }

    // From then on leaving() says when the others expect it, after begin().
    void announce_leave();
    bool leaving() const { return leaving_; }
    void leave();

private:
    // The state of a context beside values, as told by a rank with the newest state.
    struct ContextState {
        std::string plan;
        std::vector<std::byte> hook;
        bool records_order = false;
        bool tunes_caps = false;
    };

    void require_not_begun(const char* what) const;
    bool apart() const;
    bool in_window() const;
    // The averager has the way back, and no step is in doubt.
    bool averager_goes_back() const { return averager_ && averager_->has_outer_parameters(); }
    void open_step();
    void undo_step();
    void go_back();
    void begin_or_form();
    bool may_meet();
    void forget_gradients();
    void form();
    void explain_loss_of_store(const std::string& reason) const;
    void call_from_group();
    std::shared_ptr<Group> make_group(const Roster& roster) const;
    std::shared_ptr<Group> make_alone() const;
    void find_state();
    void require_known_state(const Roster& roster) const;
    void heal(Group& group, const Roster& roster);
    std::string order_of_creation() const;
    void compare_blocks(Group& group) const;
    std::vector<std::int32_t> agree_on_donors(Group& group, std::vector<std::int32_t> donors);
    ContextState send_state(Group& group, Context& context, std::int32_t donor) const;
    void take_state(Context& context, const ContextState& state, bool of_hook) const;

    const std::shared_ptr<Store> store_;
    const GroupConfig config_;
    Membership membership_;
    std::shared_ptr<Group> group_;
    OpenStep::Parts parts_;              // contexts, and from the first meeting on the memory of the state
    std::vector<std::int32_t> numbers_;  // of the contexts, on the group where they were created
    std::vector<StateBlock> own_blocks_;
    OpenStep open_;
    bool begun_ = false;               // the step that commit() is for
    std::int64_t window_steps_ = 0;    // committed in the window that is open
    std::int64_t undone_window_ = -1;  // the first step of a window that was undone before the next roster
    bool undone_ = true;      // gradients are of steps that were undone, or that this process did in another job
    std::int64_t waits_ = 0;  // steps for which somebody has waited for the end of a window
    Averager* averager_ = nullptr;
    std::int64_t averager_steps_ = 0;  // at the begin of the open step
    std::int64_t steps_ = -1;          // -1: it has no state yet
    std::int64_t uncounted_ = 0;       // steps of the job that the averager has not counted
    bool has_had_state_ = false;       // of the job: until then its steps are only loaded
    bool formed_ = false;              // the group is that of the roster
    bool state_unknown_ = false;       // an open step could not be undone: steps_ may count one that is in the state
    // Whether steps begin with a copy of the state: the first ones of a process, and all of a program that needs it.
    bool has_committed_ = false, needs_copies_ = false;
    bool changed_ = false;
    bool leave_announced_ = false, leaving_ = false;
};

}  // namespace libddp
