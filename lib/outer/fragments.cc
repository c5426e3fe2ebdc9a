#include "outer/fragments.h"

#include <algorithm>
#include <numeric>

namespace libddp {
namespace {

// Each fragment takes parameters as long as it has no more than `most` bytes, and enough are left
// for the others. Returns how many fragments that makes.
std::int32_t fill(const std::vector<std::size_t>& bytes, std::int32_t fragments, std::size_t most,
                  std::vector<std::int32_t>& fragment_of) {
    std::int32_t now = 0;
    std::size_t used = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const auto others = static_cast<std::size_t>(std::max(fragments - 1 - now, 0));
        if (i > 0 && (used + bytes[i] > most || bytes.size() - i == others)) {
            ++now;
            used = 0;
        }
        used += bytes[i];
        fragment_of[i] = now;
    }
    return now + 1;
}

}  // namespace

std::vector<std::int32_t> cut_into_fragments(const std::vector<std::size_t>& bytes,
                                             std::int32_t fragments) {
    std::vector<std::int32_t> fragment_of(bytes.size());
    if (bytes.empty()) return fragment_of;
    std::size_t low = *std::max_element(bytes.begin(), bytes.end()),
                high = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
    while (low < high) {
        const std::size_t most = low + (high - low) / 2;
        if (fill(bytes, fragments, most, fragment_of) <= fragments)
            high = most;
        else
            low = most + 1;
    }
    fill(bytes, fragments, low, fragment_of);
    return fragment_of;
}

}  // namespace libddp
