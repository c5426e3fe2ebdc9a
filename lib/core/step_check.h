// DDP_CONTEXT_CHECK looks for two mistakes here, besides values that differ (value_check.h):
// gradients that change after they were announced, and gradients that nobody wrote.
//
// Gradients that would live in buckets lie in memory of the layout's own instead
// (Layout::place_checked_views), and are copied like those of the caller's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/observer.h"
#include "core/param_table.h"
#include "util/error.h"

namespace libddp {

class StepCheck final : public Observer {
public:
    explicit StepCheck(const ParamTable& table);

    // This is what the program announces. Any thread, several at once for different parameters.
    void announce(std::int32_t param, const void* gradient);

    // Before results overwrite what the program has written. Breaks the group for what is wrong
    // with a gradient.
    void on_bucket(ReducerParts& parts, const ddp_bucket& bucket) override;
    // A gradient is final.
    void on_result(std::int32_t param, const Gradient& gradient);
    // No rank goes on before all have found nothing: an error that one of them finds is that of
    // this step on each.
    void on_end(ReducerParts& parts) override;
    // Nothing is announced any more.
    void on_forget() override;

private:
    struct Seen {
        bool announced = false, has_result = false;
        std::uint64_t announced_hash = 0, result_hash = 0;
        // The gradient of the step before was not like its result, so that a repetition of the
        // result is none of the gradient.
        bool result_was_new = false;
        // How long the announced gradients have been the results of the steps before them: how many
        // values that concerns, how many of them are not round, and whether it began with a result
        // that was new.
        std::int32_t repeated_values = 0, repeated_digits = 0;
        bool repeats_new = false, warned = false;
        // Synced steps in which it was announced and zero, until it was not zero for the first time
        // (-1).
        std::int32_t zero_steps = 0;
    };

    // The mistake in the gradient, if there is one.
    std::optional<ErrorInfo> examine(std::int32_t param, const void* gradient, std::int32_t rank,
                                     std::int64_t step);
    Seen& at(std::int32_t param) { return gradients_[static_cast<std::size_t>(param)]; }
    void warn_of_doubt(const Param& param, Seen& gradient, std::int32_t rank,
                       std::int64_t step) const;

    const ParamTable& table_;
    std::vector<Seen> gradients_;
};

}  // namespace libddp
