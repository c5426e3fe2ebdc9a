// The settings of an optimizer for one parameter: numbers with names and bounds.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "util/hash.h"

namespace libddp {

struct SettingKind {
    enum class Form : std::uint8_t { kReal, kWhole };

    const char* name;
    double value;        // that it has by default
    double most;         // at least 0, at most this
    bool below = false;  // and less than that
    Form form = Form::kReal;
    bool fixed = false;  // from the first step on
};

class Settings {
public:
    // text: "key=value,key=value". what: names it in messages. Throws INVALID_ARGUMENT.
    Settings(const std::vector<SettingKind>& kinds, std::string_view text, const std::string& what);

    // Throws INVALID_ARGUMENT, and nothing has changed.
    void set(const std::string& key, double value, bool stepped);
    // One that is among the kinds.
    double operator[](std::string_view key) const;

    std::string text() const;
    void add_to(Hash& hash) const;

private:
    std::size_t find(std::string_view key) const;
    void check(std::size_t i, double value) const;

    const std::vector<SettingKind>* kinds_;
    std::vector<double> values_;
};

}  // namespace libddp
