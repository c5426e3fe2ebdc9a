// The parts of an elastic job: contexts, an averager, and memory of the program. Added objects must
// stay as long as the job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "elastic/kept_shards.h"
#include "elastic/state.h"
#include "outer/averager.h"

namespace libddp {

class JobParts {
public:
    // These throw CallError for what an elastic job cannot have.
    void add_context(Context& context);
    void add_averager(Averager& averager);
    void add_state(StateBlock block);

    // Contexts are committed, and everything that was added stays where it is: state() and
    // buffers() from now on.
    void find_state();
    const StateBlocks& state() const { return state_; }       // what optimizers change
    const StateBlocks& added() const { return own_blocks_; }  // of it: what is not in contexts
    const StateBlocks& buffers() const { return buffers_; }   // what forward passes change
    // Throws MISMATCH if the ranks of the group have other parts. Collective.
    void compare(Group& group) const;

    const std::vector<Context*>& contexts() const { return contexts_; }
    void require_between_steps() const;
    void set_group(const std::shared_ptr<Group>& group) const;
    void clear_gradients() const;
    // Whether a context has gradients that wait for a synced step.
    bool in_window() const;
    // Whether the program reads means before ddp_finalize.
    bool come_early() const;

    // The shards of the context; null: it has none.
    KeptShards* kept() const { return kept_.get(); }
    Averager* averager() const { return averager_; }
    // The ranks have other values until the averager's next average.
    bool apart() const { return averager_ && averager_->steps() != averager_->shared_steps(); }
    // The averager has the way back, and no step is in doubt.
    bool averager_goes_back() const { return averager_ && averager_->has_outer_parameters(); }

private:
    std::string order_of_creation() const;

    std::vector<Context*> contexts_;
    std::vector<std::int32_t> numbers_;  // of the contexts, on the group where they were created
    StateBlocks own_blocks_, state_, buffers_;
    std::unique_ptr<KeptShards> kept_;
    Averager* averager_ = nullptr;
};

}  // namespace libddp
