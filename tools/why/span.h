// A span of time, in nanoseconds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace libddp::record {

struct Span {
    std::int64_t begin = 0, end = 0;
};

inline std::int64_t overlap(const Span& a, const Span& b) {
    return std::max<std::int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

}  // namespace libddp::record
