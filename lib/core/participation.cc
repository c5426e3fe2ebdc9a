#include "core/participation.h"

#include "util/hash.h"

namespace libddp {

Participation::Participation(const ParamTable& table)
    : table_(table), frozen_(table.params().size()), skipped_(table.params().size()) {}

void Participation::freeze(const std::vector<std::int32_t>& params, bool frozen) {
    for (auto id : params) frozen_[static_cast<std::size_t>(id)] = frozen;
}

void Participation::skip(const std::vector<std::int32_t>& params) {
    end_skipping();
    for (auto id : params) skipped_[static_cast<std::size_t>(id)] = true;
    any_skipped_ = !params.empty();
}

void Participation::end_skipping() {
    if (any_skipped_) skipped_.assign(skipped_.size(), false);
    any_skipped_ = false;
}

void Participation::record(const std::vector<std::uint8_t>& here,
                           const std::vector<std::uint8_t>& anywhere) {
    here_ = here;
    anywhere_ = anywhere;
    recorded_ = true;
}

Role Participation::role(std::int32_t param) const {
    const auto i = static_cast<std::size_t>(param);
    if (table_[param].ignored) return Role::kIgnored;
    if (frozen_[i] || skipped_[i]) return Role::kAbsent;
    if (!recorded_) return Role::kExpected;
    return here_[i] ? Role::kExpected : anywhere_[i] ? Role::kAbsentHere : Role::kAbsent;
}

std::uint64_t Participation::hash() const {
    Hash hash;
    bool any = false;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        if (role(id) != Role::kAbsent) continue;
        hash.add(static_cast<std::uint64_t>(id));
        any = true;
    }
    return any ? hash.value() : 0;
}

}  // namespace libddp
