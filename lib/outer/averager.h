// Averaging of models that are trained apart for some steps. Semantics: include/ddp/averager.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "outer/outer_optimizer.h"
#include "util/process.h"

namespace libddp {

// The mean over the ranks of `group` of all values of the context that have one, in place.
// Collective.
void average_parameters(const Context& context, Group& group);

class Averager {
public:
    // Every `period` steps, over `ranks` consecutive ranks.
    struct Level {
        std::int64_t period = 1;
        std::int32_t ranks = 1;
        std::shared_ptr<Group> group;  // null: the context's own, or nobody but this rank
    };

    // levels: from the shortest period to the longest, whose ranks are all of the context's group.
    // Collective where smaller groups have to be made.
    Averager(Context& context, std::vector<Level> levels, std::int64_t warmup_steps);

    // Returns over how many ranks it averaged; 0: it was not the time.
    std::int32_t step();

    std::int64_t steps() const { return steps_; }
    // Forgets a fragment on its way.
    void set_steps(std::int64_t steps);

    // With one period: how many steps were counted when all ranks last had the same values, or outer
    // parameters. During the warm-up that is after each step, and later after each average and each
    // turn of a fragment.
    std::int64_t shared_steps() const { return shared_steps_; }
    // Back to that moment, also in the middle of a step: the values are the outer parameters, if
    // there are any yet. A fragment on its way is forgotten.
    void go_back();
    const Context& context() const { return context_; }
    // When it averages, and with which outer optimizer. Ranks that average together have the same.
    std::string rhythm() const;
    bool has_outer() const { return outer_.has_value(); }
    // Whether go_back() has values to go back to.
    bool has_outer_parameters() const { return outer_ && outer_->has_parameters(); }
    std::size_t periods() const { return levels_.size(); }

    // From the next average over all ranks on.
    void set_outer(const ddp_outer_options& options);
    // The fragment of each parameter.
    void set_fragments(const std::vector<std::int32_t>& fragment_of);
    // Throws INVALID_STATE without an outer optimizer, or in the middle of a step.
    void require_outer() const;
    std::vector<std::byte> state() const;
    void load_state(const std::byte* data, std::size_t size);

private:
    void require_context() const;
    void require_context_between_steps() const;
    void require_same_group() const;
    void require_turns(const ddp_outer_options& options) const;
    ddp_outer_kind outer_kind() const { return outer_ ? outer_->options().kind : DDP_OUTER_NONE; }
    std::int64_t spacing() const;
    std::int64_t counted() const;
    const Level* due() const;
    bool is_due(const std::optional<FragmentSum>& sum) const;
    std::int64_t last_shared(std::int64_t steps) const;
    OpTag tag() const;
    std::int32_t average(const Level& level, const OpTag& tag,
                         const std::vector<std::int32_t>& params);
    std::int32_t take_turn();
    void mix();

    std::weak_ptr<const void> life_;  // of the context
    Context& context_;
    std::vector<Level> levels_;
    const std::int64_t warmup_steps_;
    const std::weak_ptr<Group> made_for_;
    std::int64_t steps_ = 0, shared_steps_ = 0;
    std::optional<OuterOptimizer> outer_;
    std::optional<FragmentSum> travelling_;
};

}  // namespace libddp

struct ddp_averager {
    libddp::Averager impl;
    libddp::Origin origin{};
};
