// Parsing of "key=value,key=value" option strings and of numbers, with errors that name the
// culprit.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace libddp {

// Throws INVALID_ARGUMENT, naming `what` (for example "backend_options"), on a malformed string or
// a repeated key.
std::map<std::string, std::string> parse_options(std::string_view text, std::string_view what);

// Throws INVALID_ARGUMENT unless the whole text is a decimal integer between low and high.
std::int64_t parse_int(std::string_view text, std::int64_t low, std::int64_t high,
                       std::string_view what);

// Throws INVALID_ARGUMENT unless the whole text is a finite decimal number of at least `low`.
double parse_real(std::string_view text, double low, std::string_view what);

// Options that are taken out one after another; what is left over at the end was not known.
class OptionReader {
public:
    // what: names the options in messages.
    OptionReader(std::string_view text, std::string what)
        : options_(parse_options(text, what)), what_(std::move(what)) {}

    // Each leaves `value` alone if the option is not given.
    template <class Integer>
    void integer(const std::string& key, Integer& value, std::int64_t low,
                 std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
        if (const auto text = take(key))
            value = static_cast<Integer>(parse_int(*text, low, high, name(key)));
    }
    void real(const std::string& key, double& value, double low) {
        if (const auto text = take(key)) value = parse_real(*text, low, name(key));
    }
    // 0 or 1.
    void flag(const std::string& key, bool& value) { integer(key, value, 0, 1); }
    std::optional<std::string> take(const std::string& key);
    std::string name(const std::string& key) const { return what_ + ": " + key; }

    // Throws INVALID_ARGUMENT if an option was given that nobody asked for.
    void finish() const;

private:
    std::map<std::string, std::string> options_;
    std::string known_;
    const std::string what_;
};

}  // namespace libddp
