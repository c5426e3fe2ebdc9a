#include "core/used_map.h"

#include <algorithm>

namespace libddp {

UsedMap::UsedMap(std::size_t count) : here_(count), anywhere_(count) {}

void UsedMap::clear() {
    std::fill(here_.begin(), here_.end(), std::uint8_t{0});
    work_ = nullptr;
    travelling_ = nullptr;
}

// The maximum, not the sum: it fits a byte in a world of any size.
void UsedMap::exchange(Group& group, const OpTag& tag) {
    travelling_ = std::make_shared<std::vector<std::uint8_t>>(here_);
    Collective c{DDP_COLLECTIVE_ALLREDUCE, nullptr, travelling_->data(), travelling_->size(), DDP_U8, DDP_MAX};
    work_ = group.submit(c, tag.keeping(travelling_));
}

void UsedMap::wait() {
    if (!work_) return;
    work_->wait(std::nullopt);
    if (!work_->result().ok()) throw Error(work_->result());
    anywhere_ = *travelling_;
    work_ = nullptr;
}

}  // namespace libddp
