#include "util/options.h"

#include <charconv>
#include <cmath>

#include "util/error.h"

namespace libddp {

std::map<std::string, std::string> parse_options(std::string_view text, std::string_view what) {
    std::map<std::string, std::string> options;
    while (!text.empty()) {
        auto comma = text.find(',');
        std::string_view item = text.substr(0, comma);
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        auto equals = item.find('=');
        if (equals == std::string_view::npos || equals == 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, what, ": '", item, "' is not of the form key=value");
        auto [_, inserted] = options.emplace(item.substr(0, equals), item.substr(equals + 1));
        if (!inserted)
            fail(DDP_ERROR_INVALID_ARGUMENT, what, ": '", item.substr(0, equals),
                 "' is given twice");
    }
    return options;
}

std::int64_t parse_int(std::string_view text, std::int64_t low, std::int64_t high,
                       std::string_view what) {
    std::int64_t value = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size())
        fail(DDP_ERROR_INVALID_ARGUMENT, what, ": '", text, "' is not an integer");
    if (value < low || value > high)
        fail(DDP_ERROR_INVALID_ARGUMENT, what, ": ", value, " is not between ", low, " and ", high);
    return value;
}

double parse_real(std::string_view text, double low, std::string_view what) {
    double value = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
        fail(DDP_ERROR_INVALID_ARGUMENT, what, ": '", text, "' is not a finite number");
    if (value < low) fail(DDP_ERROR_INVALID_ARGUMENT, what, ": ", text, " is less than ", low);
    return value;
}

std::optional<std::string> OptionReader::take(const std::string& key) {
    known_ += (known_.empty() ? "" : ", ") + key;
    auto node = options_.extract(key);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
}

void OptionReader::finish() const {
    if (options_.empty()) return;
    fail(DDP_ERROR_INVALID_ARGUMENT, what_, ": there is no option '", options_.begin()->first, "'",
         known_.empty() ? "; it takes none" : "; there are: ", known_);
}

}  // namespace libddp
