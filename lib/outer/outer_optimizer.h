// The outer optimizer of an averager, and the fragments that take turns in it. Semantics:
// include/ddp/averager.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/context.h"
#include "ddp/averager.h"
#include "hooks/state.h"
#include "outer/fragment_sum.h"

namespace libddp {

class OuterOptimizer {
public:
    // The context must be there in each call. Throws INVALID_ARGUMENT if it has fewer parameters
    // than fragments.
    OuterOptimizer(const Context& context, const ddp_outer_options& options);

    const ddp_outer_options& options() const { return options_; }
    bool has_parameters() const { return started_; }
    // Other options, of the same kind.
    void set_options(const ddp_outer_options& options);
    // The fragment of each parameter, or -1 for one without values to average. All are 0 or more,
    // and each fragment has a parameter.
    void set_fragments(const std::vector<std::int32_t>& fragment_of);
    std::vector<std::int32_t> params(std::int32_t fragment) const;
    // Whether a turn of a fragment changes the parameters at once, and needs no copy of them.
    bool at_once() const {
        return options_.delay == 0 && options_.alpha == 0 && options_.sent_dtype == 0;
    }
    // Facts that have to be the same on every rank: the method and where it stands; the fragments
    // and how they travel.
    std::uint64_t hash() const;
    std::uint32_t fragments_hash() const;

    // The parameters hold the average over all ranks, and become the outer parameters.
    void start();
    // A fragment's values, or its outer gradients, copied.
    FragmentSum collect(std::int32_t fragment, std::int64_t due) const;
    // The fragment's parameters hold their mean.
    void step(std::int32_t fragment);
    // The mean is there: a step, which is mixed into the parameters.
    void step(const FragmentSum& sum);

    // The parameters are the outer parameters again. Without effect until there are any.
    void restore() const;

    void save(HookState& state) const;
    // Throws INVALID_ARGUMENT, and nothing has changed.
    void load(const HookState& state);

private:
    // The state of one parameter, as f32 or f64.
    struct Values {
        std::int32_t param;
        ddp_dtype dtype;
        std::size_t count;
        std::int32_t fragment;
        std::vector<std::byte> outer, momentum;  // momentum: empty if there is none
    };

    double inner_rate() const {
        return options_.kind == DDP_OUTER_SLOWMO ? options_.inner_learning_rate : 1;
    }
    void make_momentum();
    void cut_fragments();
    std::byte* fetch(const Param& param, HostCopies& copies, std::vector<std::byte>& fetched) const;
    void copy_values(const FragmentSum::Part& part, const StreamPtr& stream) const;
    void copy_gradients(const FragmentSum::Part& part) const;
    template <class Mean>
    void step_with(std::int32_t fragment, const Mean& mean, ddp_dtype sent = 0);
    void update(Values& values, ddp_dtype sent, const std::byte* mean, std::byte* local) const;
    std::int64_t timeout_ms() const { return context_.group()->timeout_ms(); }

    const Context& context_;
    const ParamTable& table_;
    ddp_outer_options options_;
    bool started_ = false;    // there are outer parameters
    std::int64_t steps_ = 0;  // since then, of any fragment
    std::vector<Values> values_;
};

}  // namespace libddp
