#include "core/step_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/reducer_parts.h"
#include "kernels/dtype.h"
#include "util/hash.h"
#include "util/log.h"

namespace libddp {
namespace {

// So many different values, all of them those of the result before, are no coincidence, even where
// gradients take few values.
constexpr std::int32_t kProof = 16;
// After so many steps a gradient that was always zero is worth a line.
constexpr std::int32_t kZeroSteps = 20;

// Whether a number has few digits, as in gradients that somebody makes up: their means easily are
// gradients of others. Gradients that a training computes hardly ever are round. In types of 16
// bits, and among integers, nothing tells the two apart.
template <class Bits>
bool is_round(const char* value, std::size_t size) {
    constexpr Bits low = (Bits{1} << (sizeof(Bits) == 4 ? 12 : 26)) - 1;
    for (std::size_t i = 0; i < size; i += sizeof(Bits)) {
        Bits bits = 0;
        std::memcpy(&bits, value + i, sizeof bits);
        if ((bits & low) != 0) return false;
    }
    return true;
}

bool is_round(ddp_dtype dtype, std::string_view value) {
    if (dtype == DDP_F32 || dtype == DDP_C64)
        return is_round<std::uint32_t>(value.data(), value.size());
    if (dtype == DDP_F64 || dtype == DDP_C128)
        return is_round<std::uint64_t>(value.data(), value.size());
    return true;
}

// How many different values there are besides zero, as far as kProof, or without those that are
// round.
std::int32_t different_values(const Param& param, const void* gradient, bool with_round) {
    const std::size_t size = dtype_size(param.gradient.dtype);
    const std::string_view bytes(static_cast<const char*>(gradient), param.gradient.bytes);
    const std::string zero(size, '\0');
    std::array<std::string_view, kProof> found;
    std::size_t count = 0;
    for (std::size_t i = 0; i < bytes.size() && count < found.size(); i += size) {
        const std::string_view value = bytes.substr(i, size);
        if (value == zero || (!with_round && is_round(param.gradient.dtype, value))) continue;
        const auto end = found.begin() + static_cast<std::ptrdiff_t>(count);
        if (std::find(found.begin(), end, value) == end) found[count++] = value;
    }
    return static_cast<std::int32_t>(count);
}

bool has_gradient(const Param& param) {
    return !param.ignored && !param.sparse && param.gradient.bytes > 0;
}

}  // namespace

StepCheck::StepCheck(const ParamTable& table) : table_(table), gradients_(table.params().size()) {}

void StepCheck::announce(std::int32_t param, const void* gradient) {
    const Param& p = table_[param];
    if (!has_gradient(p)) return;
    Seen& g = at(param);
    g.announced = true;
    g.announced_hash = hash_of(gradient, p.gradient.bytes);
    const std::int32_t values = different_values(p, gradient, true);
    if (g.zero_steps >= 0) g.zero_steps = values == 0 ? g.zero_steps + 1 : -1;
    if (!g.has_result || g.announced_hash != g.result_hash || values == 0) {
        g.repeated_values = g.repeated_digits = 0;
        g.repeats_new = false;
        return;
    }
    if (g.repeated_values == 0) g.repeats_new = g.result_was_new;
    g.repeated_values = std::min(g.repeated_values + values, kProof);
    g.repeated_digits = std::min(g.repeated_digits + different_values(p, gradient, false), kProof);
}

std::optional<ErrorInfo> StepCheck::examine(std::int32_t param, const void* gradient,
                                            std::int32_t rank, std::int64_t step) {
    Seen& g = at(param);
    if (!g.announced) return std::nullopt;
    const Param& p = table_[param];
    if (hash_of(gradient, p.gradient.bytes) != g.announced_hash)
        return ErrorInfo{
            DDP_ERROR_INVALID_STATE,
            str("step ", step, ": the gradient of '", p.name, "' was written on rank ", rank,
                " after it was announced, so that the mean is not that of the gradients. Announce "
                "it after the last write, and leave it alone until ddp_finalize returns",
                p.uses > 1 ? "" : "; if several layers share it, register it with `uses`"),
            rank,
            param,
            -1,
            step};
    if (g.repeated_digits >= kProof && g.repeats_new)
        return ErrorInfo{
            DDP_ERROR_MISSING_GRADIENT,
            str("step ", step, ": the gradient of '", p.name, "' was announced on rank ", rank,
                ", but nobody has written it: it still is the result of the step before. Write the "
                "gradient of each step to ",
                p.grad ? "desc.grad"
                       : "its view (ddp_grad_view, again when ddp_layout_generation has changed)",
                ", or give it to ddp_put"),
            rank,
            param,
            -1,
            step};
    warn_of_doubt(p, g, rank, step);
    return std::nullopt;
}

// Correct programs may do this, too, so it is no error.
void StepCheck::warn_of_doubt(const Param& param, Seen& g, std::int32_t rank,
                              std::int64_t step) const {
    if (g.warned) return;
    const char* doubt =
        g.repeated_values >= kProof  ? " is the result of the step before, bit for bit"
        : g.zero_steps >= kZeroSteps ? " has been zero in every step since ddp_commit"
                                     : nullptr;
    if (!doubt) return;
    g.warned = true;
    log(LogLevel::kWarn, "rank ", rank, ", step ", step, ": the gradient of '", param.name, "'",
        doubt, "; does the program write it where libddp reads it (DDP_CONTEXT_CHECK)?");
}

void StepCheck::on_bucket(ReducerParts& parts, const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors)
        if (auto error = examine(tensor.param, parts.gradients[tensor.param].grad,
                                 parts.group->rank(), parts.step->number))
            throw Error(
                parts.queue.break_with(std::move(*error), static_cast<std::size_t>(bucket.index)));
}

void StepCheck::on_result(std::int32_t param, const Gradient& gradient) {
    Seen& g = at(param);
    g.has_result = g.announced;
    if (!g.announced) return;
    g.result_hash = hash_of(gradient.grad, table_[param].gradient.bytes);
    g.result_was_new = g.result_hash != g.announced_hash;
}

void StepCheck::on_end(ReducerParts& parts) {
    if (parts.group->world() > 1) parts.group->run({}, parts.queue.step_tag(Purpose::kEndOfCheck));
}

void StepCheck::on_forget() {
    for (Seen& g : gradients_) g.announced = false;
}

}  // namespace libddp
