// The sum of the hook "quantize", written down plainly: what docs/hooks.md says, rounded to nearest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace eight_bits_test {

using Floats = std::vector<float>;

inline const std::vector<std::int64_t> kSizes{3000, 7, 256, 1, 257, 0, 5000, 64};

struct Format {
    const char* name;
    int bias, mantissa;  // 0: int8
    float most;

    // In which q is counted, and in which it is rounded before: that is far finer.
    double unit(double q) const {
        if (bias == 0) return 1;
        int exponent = 0;
        std::frexp(q, &exponent);
        return std::ldexp(1, std::max(exponent - 1, 1 - bias) - mantissa);
    }
    double finer(double q) const {
        return bias == 0 ? 0x1p-15 : unit(q) * std::ldexp(1, mantissa - 23);
    }
    float rounded(float q) const {
        const double fine = finer(q), t = std::nearbyint(q / fine) * fine;
        return static_cast<float>(std::nearbyint(t / unit(q)) * unit(q));
    }
    // By how much an element may be wrong.
    double bound(double x, double largest) const {
        return unit(x / largest * most) * largest / most / 2 * (1 + 0x1p-12);
    }
};
inline const Format kFormats[] = {{"int8", 0, 0, 127}, {"e4m3", 7, 3, 448}, {"e5m2", 15, 2, 57344}};

inline float largest_of(const Floats& x, std::size_t begin, std::size_t end) {
    float largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
    return largest;
}

// A list of numbers after it was packed, in blocks from the first one on.
inline Floats packed(const Format& format, const Floats& x, std::size_t block) {
    Floats result(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += block) {
        const std::size_t end = std::min(begin + block, x.size());
        const float largest = largest_of(x, begin, end);
        for (std::size_t i = begin; i < end && largest > 0; ++i) {
            const float q = x[i] / largest * format.most;
            result[i] = format.rounded(q) * (1 / format.most) * largest;
        }
    }
    return result;
}

inline Floats gradient(int rank, int param, int step) {
    std::mt19937 random(static_cast<unsigned>(1 + rank + 100 * param + 10'000 * step));
    Floats x(static_cast<std::size_t>(kSizes[static_cast<std::size_t>(param)]));
    for (float& v : x)
        v = std::ldexp(static_cast<float>(static_cast<int>(random() % 65536) - 32768),
                       -15 - static_cast<int>(random() % 6));
    return x;
}

// As the owners of the shares compute it.
inline Floats reference(const Format& format, int param, int step, int world, std::size_t block) {
    Floats sum(static_cast<std::size_t>(kSizes[static_cast<std::size_t>(param)]));
    for (int r = 0; r < world; ++r) {
        const Floats x = packed(format, gradient(r, param, step), block);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
    }
    for (float& v : sum) v *= static_cast<float>(1.0 / world);
    return packed(format, sum, block);
}

}  // namespace eight_bits_test
