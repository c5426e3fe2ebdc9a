#include "comm/verdict.h"

#include <charconv>

namespace libddp {

std::string encode_verdict(const ErrorInfo& e) {
    return str(e.code, " ", e.rank, " ", e.param, " ", e.bucket, " ", e.step, " ", e.message);
}

ErrorInfo decode_verdict(std::string_view text) {
    const std::string_view whole = text;
    bool good = true;
    auto number = [&](auto& value) {
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        good = good && code == std::errc() && end != text.data() + text.size() && *end == ' ';
        if (good) text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
    };
    ErrorInfo e;
    number(e.code);
    number(e.rank);
    number(e.param);
    number(e.bucket);
    number(e.step);
    if (!good || e.ok()) return {DDP_ERROR_INTERNAL, str("the store holds a malformed verdict: '", whole, "'")};
    e.message = text;
    return e;
}

}  // namespace libddp
