#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace bench {

double percentile(std::vector<double> series, double fraction) {
    if (series.empty()) throw std::invalid_argument("percentile of an empty series");
    if (!(fraction >= 0.0 && fraction <= 1.0))
        throw std::invalid_argument("percentile outside 0 to 1");
    std::sort(series.begin(), series.end());
    const double position = fraction * static_cast<double>(series.size() - 1);
    const auto below = static_cast<std::size_t>(std::floor(position));
    const auto above = static_cast<std::size_t>(std::ceil(position));
    const double weight = position - static_cast<double>(below);
    return series[below] + weight * (series[above] - series[below]);
}

double median(std::vector<double> series) {
    return percentile(std::move(series), 0.5);
}

Summary summarize(const std::vector<double>& series) {
    return {median(series), percentile(series, 0.1), percentile(series, 0.9),
            percentile(series, 0.99)};
}

}  // namespace bench
