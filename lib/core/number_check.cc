#include "core/number_check.h"

#include <cmath>
#include <cstddef>

#include "comm/verdict.h"
#include "core/norms.h"
#include "core/reducer_parts.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

const char* text_of(double value) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// The bad part of an element.
double value_at(const void* data, std::size_t element, ddp_dtype dtype) {
    const auto* at = static_cast<const std::byte*>(data) + element * dtype_size(dtype);
    double parts[2] = {};
    cpu::convert(parts, is_complex(dtype) ? DDP_C128 : DDP_F64, at, dtype, 1);
    return std::isfinite(parts[0]) ? parts[1] : parts[0];
}

}  // namespace

std::optional<BadNumber> NumberCheck::found(std::int32_t param, BadNumber::Where where,
                                            const void* data, std::size_t element,
                                            ddp_dtype dtype) const {
    return BadNumber{param, where, static_cast<std::int64_t>(element),
                     value_at(data, element, dtype)};
}

std::optional<BadNumber> NumberCheck::look(std::int32_t param, BadNumber::Where where,
                                           const void* data, std::size_t count,
                                           ddp_dtype dtype) const {
    const std::size_t element = cpu::first_nonfinite(data, count, dtype);
    if (element == count) return std::nullopt;
    return found(param, where, data, element, dtype);
}

std::optional<BadNumber> NumberCheck::of_gradient(std::int32_t param, const void* gradient,
                                                  std::size_t element) const {
    const Param& p = table_[param];
    if (element == static_cast<std::size_t>(p.count)) return std::nullopt;
    return found(param, BadNumber::kGradient, gradient, element, p.gradient.dtype);
}

std::optional<BadNumber> NumberCheck::in_rows(std::int32_t param, const SparseRows& rows,
                                              BadNumber::Where where) const {
    const Param& p = table_[param];
    auto bad = look(param, where, rows.values.data(),
                    rows.values.size() / dtype_size(p.gradient.dtype), p.gradient.dtype);
    if (bad) {
        const std::int64_t row = p.row_count();
        bad->element =
            rows.indices[static_cast<std::size_t>(bad->element / row)] * row + bad->element % row;
    }
    return bad;
}

std::optional<BadNumber> NumberCheck::in_factors(std::int32_t param,
                                                 FactorGradients& factors) const {
    const ddp_dtype dtype = table_[param].gradient.dtype;
    const auto look_at = [&](const std::vector<std::byte>& part, BadNumber::Where where) {
        return look(param, where, part.data(), part.size() / dtype_size(dtype), dtype);
    };
    auto bad = look_at(factors.products(param), BadNumber::kGradient);
    if (!bad) bad = look_at(factors.left(param), BadNumber::kLeftFactor);
    if (!bad) bad = look_at(factors.right(param), BadNumber::kRightFactor);
    return bad;
}

std::optional<BadNumber> NumberCheck::in_tensor(const ddp_bucket& bucket,
                                                const BucketTensor& tensor) const {
    const auto count = static_cast<std::size_t>(tensor.owned);
    auto bad = bucket.result
                   ? look(tensor.param, BadNumber::kResult, bucket.owned_result(tensor), count,
                          bucket.result_dtype)
                   : look(tensor.param, BadNumber::kResult,
                          bucket.first_owned(tensor.gradient, tensor), count, bucket.dtype);
    if (bad) bad->element += tensor.first_owned;
    return bad;
}

ErrorInfo NumberCheck::error(const BadNumber& bad, std::int32_t rank, std::int64_t step) const {
    const Param& p = table_[bad.param];
    const bool factor = bad.where == BadNumber::kLeftFactor || bad.where == BadNumber::kRightFactor;
    const std::string element = str("element ", bad.element, factor ? "" : str(" of ", p.count),
                                    " is ", text_of(bad.value));
    std::string text = str("step ", step, ": ");
    if (bad.where == BadNumber::kResult)
        text += str("the result for '", p.name,
                    "' is not finite, although the gradients of all ranks are: ", element,
                    ". Scale the loss down, or reduce in a type with a larger range");
    else
        text += str(factor ? bad.where == BadNumber::kLeftFactor ? "the left factor of "
                                                                 : "the right factor of "
                           : "",
                    "the gradient of '", p.name, "' on rank ", rank, " is not finite: ", element);
    return {DDP_ERROR_NONFINITE,
            std::move(text),
            bad.where == BadNumber::kResult ? -1 : rank,
            bad.param,
            -1,
            step};
}

void NumberCheck::note(const BadNumber& bad) {
    const Lock lock(mutex_);
    if (first_.param < 0 || bad.param < first_.param) first_ = bad;
    any_.store(true, std::memory_order_release);
}

// One byte in every step, which travels with the norms where these travel.
std::uint8_t NumberCheck::on_any_rank(ReducerParts& parts, std::uint8_t bad, const OpTag& tag) {
    Norms* const norms = parts.observers.norms;
    if (norms && norms->exchanges(parts)) return norms->add_up(parts, bad, tag);
    if (parts.group->world() > 1)
        parts.group->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, &bad, 1, DDP_U8, DDP_MAX}, tag);
    return bad;
}

// Only if a rank has found something they tell each other what.
std::optional<ErrorInfo> NumberCheck::agree(ReducerParts& parts) {
    Group& group = *parts.group;
    const std::int64_t step = parts.step->number;
    const OpTag tag = parts.queue.step_tag(Purpose::kNumbers);
    const std::uint8_t bad = on_any_rank(parts, any() ? 1 : 0, tag);
    agreed_ = true;
    if (bad == 0) return std::nullopt;
    std::vector<BadNumber> all(static_cast<std::size_t>(group.world()));
    {
        const Lock lock(mutex_);
        all[static_cast<std::size_t>(group.rank())] = first_;
    }
    if (group.world() > 1)
        group.run({DDP_COLLECTIVE_ALLGATHER, nullptr, all.data(), sizeof(BadNumber), DDP_U8}, tag);
    // A gradient explains every result.
    std::vector<std::int32_t> ranks;
    std::int32_t of_result = -1;
    for (std::int32_t r = 0; r < group.world(); ++r) {
        const BadNumber& one = all[static_cast<std::size_t>(r)];
        if (one.param < 0) continue;
        if (one.param >= table_.size())
            throw Error(group.break_everywhere(
                {DDP_ERROR_IO,
                 str("rank ", r, " sent ", one.param, " as a parameter; its memory is damaged"), r,
                 -1, -1, step}));
        if (one.where != BadNumber::kResult)
            ranks.push_back(r);
        else if (of_result < 0)
            of_result = r;
    }
    if (ranks.empty() && of_result < 0)
        throw Error(group.break_everywhere({DDP_ERROR_IO,
                                            "a rank has found a number that is not finite, and "
                                            "none says which; its memory is damaged",
                                            -1, -1, -1, step}));
    const std::int32_t rank = ranks.empty() ? of_result : ranks.front();
    ErrorInfo verdict = error(all[static_cast<std::size_t>(rank)], rank, step);
    if (ranks.size() > 1) {
        ranks.erase(ranks.begin());
        verdict.message += str("; ", ranks_text(ranks), ranks.size() == 1 ? " has" : " have",
                               " such gradients too");
    }
    verdict.message += ". All ranks skip the step (DDP_CONTEXT_SKIP_NONFINITE)";
    return verdict;
}

bool NumberCheck::fill(Gradients& gradients, std::int32_t param, bool dense, const Step& step,
                       Group& group) {
    const ParamState& s = gradients[param];
    const double scale = gradients.scale(s, step);
    std::optional<BadNumber> bad;
    if (dense) bad = of_gradient(param, s.place, gradients.on_host().fill_checked(s, scale));
    if (s.sparse) bad = in_rows(param, gradients.rows().given(param), BadNumber::kGradient);
    if (s.factored && !bad) bad = in_factors(param, gradients.factors());
    if (!bad || (step.begin.factor == 0 && is_floating(s.dtype))) return true;
    if (!skips_) throw Error(group.break_everywhere(error(*bad, group.rank(), step.number)));
    note(*bad);
    return false;
}

void NumberCheck::before_results(ReducerParts& parts) {
    Step& step = *parts.step;
    if (!skips_ || step.discarded() || agreed_) return;
    for (std::size_t b = 0; b < parts.layout->size(); ++b) {
        const ddp_bucket& bucket = parts.queue.wait(b);
        if (any()) continue;
        if (parts.observers.norms) parts.observers.norms->count(parts, bucket);
        if (const auto bad = in_result(parts, bucket)) note(*bad);
    }
    step.skipped = agree(parts);
}

void NumberCheck::on_bucket(ReducerParts& parts, const ddp_bucket& bucket) {
    if (skips_) return;
    if (const auto bad = in_result(parts, bucket))
        throw Error(parts.group->break_everywhere(error(*bad, -1, parts.step->number)));
}

std::optional<BadNumber> NumberCheck::in_result(ReducerParts& parts,
                                                const ddp_bucket& bucket) const {
    if (!parts.queue.sent(static_cast<std::size_t>(bucket.index))) return std::nullopt;
    const Norms* const norms = parts.observers.norms;
    for (const auto& tensor : bucket.tensors) {
        std::optional<BadNumber> bad;
        if (norms && norms->finite(tensor.param)) continue;
        if (table_[tensor.param].sparse)
            bad = in_rows(tensor.param, parts.gradients.rows().reduced(tensor.param),
                          BadNumber::kResult);
        else
            bad = in_tensor(bucket, tensor);
        if (bad) return bad;
    }
    return std::nullopt;
}

void NumberCheck::on_forget() {
    const Lock lock(mutex_);
    first_ = {};
    any_.store(false, std::memory_order_relaxed);
    agreed_ = false;
}

}  // namespace libddp
