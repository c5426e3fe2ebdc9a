#include "optimizer/settings.h"

#include <bit>
#include <cmath>

#include "util/error.h"
#include "util/options.h"

namespace libddp {

Settings::Settings(const std::vector<SettingKind>& kinds, std::string_view text,
                   const std::string& what)
    : kinds_(&kinds) {
    OptionReader reader(text, what);
    for (const SettingKind& kind : kinds) {
        values_.push_back(kind.value);
        reader.real(kind.name, values_.back(), 0);
    }
    reader.finish();
    for (std::size_t i = 0; i < values_.size(); ++i) check(i, values_[i]);
}

void Settings::set(const std::string& key, double value, bool stepped) {
    const std::size_t i = find(key);
    if (i == values_.size()) {
        std::string names;
        for (const SettingKind& kind : *kinds_)
            names += (names.empty() ? "" : ", ") + str(kind.name);
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "there is no setting '", key,
                  "'; there are: ", names);
    }
    check(i, value);
    if (stepped && (*kinds_)[i].fixed && value != values_[i])
        fail_call(DDP_ERROR_INVALID_STATE, key, " cannot change after the first step");
    values_[i] = value;
}

double Settings::operator[](std::string_view key) const {
    return values_[find(key)];
}

std::string Settings::text() const {
    std::string text;
    for (std::size_t i = 0; i < values_.size(); ++i)
        text += str(text.empty() ? "" : ",", (*kinds_)[i].name, "=", values_[i]);
    return text;
}

void Settings::add_to(Hash& hash) const {
    for (const double value : values_) hash.add(std::bit_cast<std::uint64_t>(value));
}

std::size_t Settings::find(std::string_view key) const {
    std::size_t i = 0;
    while (i < kinds_->size() && key != (*kinds_)[i].name) ++i;
    return i;
}

void Settings::check(std::size_t i, double value) const {
    const SettingKind& kind = (*kinds_)[i];
    // Written so that it also refuses NaN.
    const bool fits = value >= 0 && std::isfinite(value) && value <= kind.most &&
                      !(kind.below && value == kind.most);
    if (!fits)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, kind.name, " is ", value, "; it must be at least 0",
                  kind.below                 ? " and less than "
                  : std::isfinite(kind.most) ? " and at most "
                                             : "",
                  std::isfinite(kind.most) ? str(kind.most) : " and finite");
    if (kind.form == SettingKind::Form::kWhole && value != std::floor(value))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, kind.name, " is ", value,
                  "; it must be a whole number");
}

}  // namespace libddp
