// What DDP_CONTEXT_CHECK looks for, besides values that differ (value_check.h): gradients that change after they were announced, and
// gradients that nobody wrote.
//
// Gradients that would live in buckets lie in memory of the check's own instead, and are copied like those of the caller's own
// memory: so what the program writes is never what is reduced, and can be compared with what was announced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/param_table.h"
#include "util/error.h"

namespace libddp {

class StepCheck {
public:
    explicit StepCheck(const ParamTable& table);

    // Where the gradient of this parameter lives instead of in its bucket; null where it would not live there.
    std::byte* view(std::int32_t param) const { return views_[static_cast<std::size_t>(param)]; }
    const std::shared_ptr<std::byte>& memory() const { return memory_; }

    // To other memory, with their contents: a program that keeps old ones would be wrong without a check.
    void move_views();

    // This is what the program announces. Any thread, several at once for different parameters.
    void announce(std::int32_t param, const void* gradient);
    // Before the result is written: what is wrong with the gradient, if anything.
    std::optional<ErrorInfo> examine(std::int32_t param, const void* gradient, std::int32_t rank, std::int64_t step);
    // After the result was written.
    void remember(std::int32_t param, const void* gradient);
    // Nothing is announced any more.
    void forget_step();

private:
    struct Gradient {
        bool announced = false, has_result = false;
        std::uint64_t announced_hash = 0, result_hash = 0;
        // The gradient of the step before was not like its result, so that a repetition of the result is none of the gradient.
        bool result_was_new = false;
        // How long the announced gradients have been the results of the steps before them: how many values that concerns, how
        // many of them are not round, and whether it began with a result that was new.
        std::int32_t repeated_values = 0, repeated_digits = 0;
        bool repeats_new = false, warned = false;
        // Synced steps in which it was announced and zero, until it was not zero for the first time (-1).
        std::int32_t zero_steps = 0;
    };

    Gradient& at(std::int32_t param) { return gradients_[static_cast<std::size_t>(param)]; }
    void warn_of_doubt(const Param& param, Gradient& gradient, std::int32_t rank, std::int64_t step) const;

    const ParamTable& table_;
    std::shared_ptr<std::byte> memory_;
    std::vector<std::byte*> views_;
    std::vector<Gradient> gradients_;
};

}  // namespace libddp
