// The state of a job whose ranks own shards (DDP_CONTEXT_SHARD), as it was after a step. Each rank
// keeps its own part in memory, and that of its neighbours, so that the ranks that are left have
// all of it when one dies. Semantics: ddp_elastic_keep_shards and ddp_elastic_recall_shards.
//
// A rank keeps two steps. It overwrites the older one only when every rank has the newer one
// whole: each has come to the next ddp_elastic_keep_shards then. So some step is whole while no two
// neighbours are lost, wherever a rank dies.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "ddp/elastic.h"
#include "elastic/kept_layout.h"
#include "elastic/state.h"

namespace libddp {

class KeptShards {
public:
    // The context stays as long as this.
    explicit KeptShards(Context& context) : context_(context) {}

    const Context& context() const { return context_; }

    // A roster begins: the ranks tell each other what they keep, and all choose the newest step
    // that is whole. Collective.
    void meet(Group& group, std::int64_t roster);
    // Afterwards, alike on all ranks. Whether there is such a step.
    bool found() const { return chosen_.id.roster > 0; }
    // Whether there is or was one.
    bool has_begun() const { return found() || lost_; }
    std::int64_t step() const { return chosen_.step; }
    // The ranks that keep any of it, in ascending order.
    const std::vector<std::int32_t>& holders() const { return holders_; }
    // The ranks that keep this rank's shards from now on, with itself.
    const std::vector<std::int32_t>& neighbours() const { return neighbours_; }
    // Fills what every rank has whole, as it was then, on a rank that is among the holders.
    void restore(const StateBlocks& added, const StateBlocks& buffers) const;
    // The context is on the group of the roster: no step begins until shards were recalled or kept.
    // near: of the neighbours; null: there are none.
    void enter(std::shared_ptr<Group> near);
    // Before the context leaves the group of a roster.
    void leave();

    // Whether no shards were recalled or kept since the roster began.
    bool waits() const { return waits_; }
    // Whether this step was kept last.
    bool is_kept(std::int64_t step) const { return !waits_ && latest_.step == step; }

    // Collective. check: throws if this rank may not keep them.
    void keep(std::vector<StateArray> arrays, std::int64_t step, ddp_keep where,
              const StateBlocks& added, const StateBlocks& buffers,
              const std::function<void()>& check);
    // Collective. False: there is nothing to recall.
    bool recall(const std::vector<StateArray>& arrays, const StateBlocks& added,
                const StateBlocks& buffers);

private:
    struct Id {
        std::int64_t roster = 0, serial = 0;
        auto operator<=>(const Id&) const = default;
    };
    struct Choice {
        Id id;
        std::int64_t step = 0;
        std::int64_t where = DDP_KEEP_AT_NEIGHBOUR;
    };
    struct Slot : Choice {
        std::shared_ptr<const KeptLayout> layout;
        std::vector<std::int32_t> ranks;      // whose shards these are
        std::shared_ptr<std::byte[]> memory;  // one rank's after another's
        std::size_t bytes = 0;
        StateCopy added, buffers;
        std::int64_t hook_steps = 0;
    };
    struct Told;

    const Slot* slot_of(const Id& id) const;
    void choose(const std::vector<Told>& all);
    std::vector<StateArray> with_values(std::vector<StateArray> arrays) const;
    void agree(Together& together, const Choice& choice, const std::vector<StateArray>& arrays);
    void compare_replicas(Together& together, const std::vector<StateArray>& arrays) const;
    void copy(Slot& slot, const std::vector<StateArray>& arrays);
    void exchange(const Slot& slot);
    void transfer(const KeptLayout& layout, std::vector<std::vector<FileCopy>> copies) const;
    [[noreturn]] void refuse_lost() const;
    std::byte* memory_of(const Slot& slot, std::int32_t rank) const;

    Context& context_;
    Slot slots_[2];
    Choice chosen_;  // when the roster began
    Choice latest_;  // the last that was kept in the roster, and before that the same
    std::int64_t roster_ = 0;
    std::vector<std::int32_t> holders_, neighbours_;
    std::vector<std::int32_t> sources_;  // [rank that kept it]: who has it now
    // All ranks have had a step whole; and so many results of the context came before the last.
    bool known_ = false;
    std::int64_t results_ = 0;
    bool lost_ = false, waits_ = false;
    std::shared_ptr<Group> near_;
    std::shared_ptr<const KeptLayout> layout_;  // of the last that was kept in this roster
};

}  // namespace libddp
