// The outer optimizer of an averager. Semantics: include/ddp/averager.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device_streams.h"
#include "core/param_table.h"
#include "ddp/averager.h"
#include "hooks/state.h"

namespace libddp {

class OuterOptimizer {
public:
    // The table must outlive it. Throws INVALID_STATE if a parameter has no data.
    OuterOptimizer(const ParamTable& table, const ddp_outer_options& options);

    ddp_outer_kind kind() const { return options_.kind; }
    bool has_parameters() const { return started_; }
    // Other rates, of the same kind.
    void set_rates(const ddp_outer_options& options);
    // The facts that have to be the same on every rank.
    std::uint64_t hash() const;

    // The parameters hold the average over all ranks. The first time they become the outer
    // parameters.
    void step(const ContextStreams& streams, std::int64_t timeout_ms);

    // The parameters are the outer parameters again. Without effect until there are any.
    void restore(const ContextStreams& streams, std::int64_t timeout_ms) const;

    void save(HookState& state) const;
    // Throws INVALID_ARGUMENT, and nothing has changed.
    void load(const HookState& state);

private:
    // The state of one parameter, as f32 or f64.
    struct Values {
        std::int32_t param;
        ddp_dtype dtype;
        std::size_t count;
        std::vector<std::byte> outer, momentum;  // momentum: empty if there is none
    };

    double inner_rate() const {
        return options_.kind == DDP_OUTER_SLOWMO ? options_.inner_learning_rate : 1;
    }
    void make_momentum();
    void update(Values& values, std::byte* average) const;

    const ParamTable& table_;
    ddp_outer_options options_;
    bool started_ = false;  // there are outer parameters
    std::vector<Values> values_;
};

}  // namespace libddp
