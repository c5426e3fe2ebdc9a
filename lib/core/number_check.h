// Numbers that are NaN or infinite, in gradients before others get them and in results before
// gradients get them: what include/ddp/check.h promises. All ranks agree whether they skip a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/gradients.h"
#include "core/observer.h"
#include "core/param_table.h"
#include "hooks/bucket.h"
#include "util/mutex.h"

namespace libddp {

// It travels as bytes.
struct BadNumber {
    enum Where : std::int32_t { kGradient, kLeftFactor, kRightFactor, kResult };

    std::int32_t param = -1;  // none
    std::int32_t where = kGradient;
    std::int64_t element = 0;  // of the gradient, or of the factor
    double value = 0;
};

class NumberCheck final : public Observer {
public:
    // skips: a step with such a number is skipped; otherwise it breaks the context.
    NumberCheck(const ParamTable& table, bool skips) : table_(table), skips_(skips) {}

    // Brings a dense gradient into its bucket, times `scale`, and looks at it, or at rows or
    // factors, before the others can get any of it. False: all ranks will skip the step, and may
    // not get it. Any thread, several at once for different parameters.
    bool fill(Gradients& gradients, std::int32_t param, bool dense, const Step& step, Group& group);

    // No gradient gets its result before all ranks have found nothing bad: in their own gradients,
    // and in all results.
    void before_results(ReducerParts& parts) override;
    void on_bucket(ReducerParts& parts, const ddp_bucket& bucket) override;
    void on_forget() override;

private:
    // element: what cpu::first_nonfinite() has found.
    std::optional<BadNumber> of_gradient(std::int32_t param, const void* gradient,
                                         std::size_t element) const;
    std::optional<BadNumber> in_rows(std::int32_t param, const SparseRows& rows,
                                     BadNumber::Where where) const;
    std::optional<BadNumber> in_factors(std::int32_t param, FactorGradients& factors) const;
    std::optional<BadNumber> in_tensor(const ddp_bucket& bucket, const BucketTensor& tensor) const;
    std::optional<BadNumber> in_result(ReducerParts& parts, const ddp_bucket& bucket) const;
    // rank: whose gradient it is in; -1: it is in a result.
    ErrorInfo error(const BadNumber& bad, std::int32_t rank, std::int64_t step) const;
    // This rank wants to skip the step. Any thread.
    void note(const BadNumber& bad);
    bool any() const { return any_.load(std::memory_order_acquire); }
    // Why all ranks skip the step, in the same words; nothing if no rank wants to. Collective. tag:
    // the step's.
    std::optional<ErrorInfo> agree(ReducerParts& parts);
    static std::uint8_t on_any_rank(ReducerParts& parts, std::uint8_t bad, const OpTag& tag);
    std::optional<BadNumber> look(std::int32_t param, BadNumber::Where where, const void* data,
                                  std::size_t count, ddp_dtype dtype) const;
    std::optional<BadNumber> found(std::int32_t param, BadNumber::Where where, const void* data,
                                   std::size_t element, ddp_dtype dtype) const;

    const ParamTable& table_;
    const bool skips_;
    Mutex mutex_;
    BadNumber first_ DDP_GUARDED_BY(mutex_);  // of this rank: the one of the lowest parameter
    std::atomic<bool> any_{false};            // for a look without the lock
    bool agreed_ = false;
};

}  // namespace libddp
