#include "comm/verdict.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "util/host.h"

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
    if (!good || e.code >= DDP_OK)
        return {DDP_ERROR_INTERNAL, str("the store holds a malformed verdict: '", whole, "'")};
    e.message = text;
    return e;
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
    constexpr std::size_t kShown = 20;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
        text += str(i ? ", " : "", ranks[i]);
    return ranks.size() > kShown ? str(text, " and ", ranks.size() - kShown, " more") : text;
}

std::string process_text() {
    return str("pid ", getpid(), " on ", host_name());
}

ErrorInfo could_not_join(std::int32_t rank, const std::string& group, ErrorInfo error) {
    error.rank = rank;
    error.message = str("rank ", rank, " (", process_text(), ") could not join group '", group,
                        "': ", error.message);
    return error;
}

ErrorInfo on_rank(std::int32_t rank, ErrorInfo error) {
    if (error.rank >= 0) return error;
    error.rank = rank;
    error.message = str("rank ", rank, ": ", error.message);
    return error;
}

}  // namespace libddp
