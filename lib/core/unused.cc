#include "core/unused.h"

#include <algorithm>
#include <cstddef>

#include "core/reducer_parts.h"
#include "util/log.h"

namespace libddp {

Unused::Unused(const Model& model)
    : model_(model),
      here_(model.table.params().size()),
      anywhere_(model.table.params().size()),
      has_result_(model.table.params().size()) {}

// The maximum, not the sum: it fits a byte in a world of any size.
void Unused::on_close(ReducerParts& parts) {
    if (!parts.discovering()) return;
    if (parts.group->world() == 1) {
        anywhere_ = here_;
        return;
    }
    travelling_ = std::make_shared<std::vector<std::uint8_t>>(here_);
    const Collective c{DDP_COLLECTIVE_ALLREDUCE, nullptr, travelling_->data(),
                       travelling_->size(),      DDP_U8,  DDP_MAX};
    work_ = parts.group->submit(c, parts.queue.step_tag(Purpose::kUsedMap).keeping(travelling_));
}

void Unused::wait() {
    if (!work_) return;
    work_->wait(std::nullopt);
    if (!work_->result().ok()) throw Error(work_->result());
    anywhere_ = *travelling_;
    work_ = nullptr;
}

bool Unused::postponed(std::int32_t param) const {
    return std::any_of(undecided_.begin(), undecided_.end(),
                       [param](const BucketTensor& tensor) { return tensor.param == param; });
}

void Unused::warn_of_leftover(std::int32_t param, const Gradient& gradient, std::int32_t rank,
                              std::int64_t step) {
    const ReducerOptions& options = model_.options.reducer;
    if (warned_ || options.accumulate || !options.mean ||
        !has_result_[static_cast<std::size_t>(param)])
        return;
    const auto* memory =
        static_cast<const std::byte*>(gradient.grad ? gradient.grad : gradient.place);
    if (std::all_of(memory, memory + gradient.bytes, [](std::byte b) { return b == std::byte{0}; }))
        return;
    warned_ = true;
    log(LogLevel::kWarn, "rank ", rank, ", step ", step, ": the gradient of '",
        model_.table[param].name,
        "' is unused on this rank, so it counts as zero, although it holds the mean of an earlier "
        "step. If the program adds to gradients over several synced steps, create the context with "
        "the option accumulate (DDP_CONTEXT_ACCUMULATE in C); otherwise set them to zero to "
        "silence this");
}

void Unused::on_forget() {
    std::fill(here_.begin(), here_.end(), std::uint8_t{0});
    work_ = nullptr;
    travelling_ = nullptr;
    undecided_.clear();
}

bool used_anywhere(const ReducerParts& parts, std::int32_t param) {
    const Role role = parts.gradients[param].now.role;
    const Unused* const unused = parts.discovering();
    return role == Role::kExpected ? !unused || unused->used_anywhere(param)
                                   : role == Role::kAbsentHere;
}

}  // namespace libddp
