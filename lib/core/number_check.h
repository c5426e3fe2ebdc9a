// Numbers that are NaN or infinite, in gradients before others get them and in results before gradients get them: what
// include/ddp/check.h promises. All ranks agree whether they skip a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/param_table.h"
#include "core/rows_and_factors.h"
#include "hooks/bucket.h"

namespace libddp {

// What becomes of such numbers.
enum class Nonfinite : std::uint8_t { kPass, kRefuse, kSkip };

// It travels as bytes.
struct BadNumber {
    enum Where : std::int32_t { kGradient, kLeftFactor, kRightFactor, kResult };

    std::int32_t param = -1;  // none
    std::int32_t where = kGradient;
    std::int64_t element = 0;  // of the gradient, or of the factor
    double value = 0;
};

class NumberCheck {
public:
    // skips: a step with such a number is skipped; otherwise it breaks the context.
    NumberCheck(const ParamTable& table, bool skips) : table_(table), skips_(skips) {}

    bool skips() const { return skips_; }
    // Looks. Any thread, several at once for different parameters. element: what cpu::first_nonfinite() has found.
    std::optional<BadNumber> of_gradient(std::int32_t param, const void* gradient, std::size_t element) const;
    std::optional<BadNumber> in_rows(std::int32_t param, const SparseRows& rows, BadNumber::Where where) const;
    std::optional<BadNumber> in_factors(std::int32_t param, FactorGradients& factors) const;
    std::optional<BadNumber> in_result(const ddp_bucket& bucket, const BucketTensor& tensor) const;
    // rank: whose gradient it is in; -1: it is in a result.
    ErrorInfo error(const BadNumber& bad, std::int32_t rank, std::int64_t step) const;

    // This rank wants to skip the step. Any thread.
    void note(const BadNumber& bad);
    bool any() const { return any_.load(std::memory_order_acquire); }
    // Whether any rank does. Collective. tag: the step's.
    void agree(Group& group, std::int64_t step, const OpTag& tag);
    bool agreed() const { return agreed_; }
    bool skipping() const { return verdict_.has_value(); }
    // Why all ranks skip the step, in the same words.
    const std::optional<ErrorInfo>& verdict() const { return verdict_; }
    void forget_step();

private:
    std::optional<BadNumber> look(std::int32_t param, BadNumber::Where where, const void* data, std::size_t count,
                                  ddp_dtype dtype) const;
    std::optional<BadNumber> found(std::int32_t param, BadNumber::Where where, const void* data, std::size_t element,
                                   ddp_dtype dtype) const;

    const ParamTable& table_;
    const bool skips_;
    std::mutex mutex_;
    BadNumber first_;  // of this rank: the one of the lowest parameter
    std::atomic<bool> any_{false};
    bool agreed_ = false;
    std::optional<ErrorInfo> verdict_;
};

}  // namespace libddp
