// Order statistics of a series of timings.
#pragma once

#include <vector>

namespace bench {

// The value below which `fraction` (0 to 1) of the sorted series lies, interpolated between
// neighbours, as numpy's default does. Throws std::invalid_argument for an empty series or a
// fraction outside.
double percentile(std::vector<double> series, double fraction);

double median(std::vector<double> series);

struct Summary {
    double median;
    double p10;
    double p90;
    double p99;
};

Summary summarize(const std::vector<double>& series);

}  // namespace bench
