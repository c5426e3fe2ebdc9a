#include "hooks/powersgd_math.h"

#include <Random123/philox.h>

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/dtype.h"

namespace libddp::powersgd {
namespace {

template <class T>
T* column(const Thin& a, std::size_t k) {
    return static_cast<T*>(a.data) + k * a.rows;
}

// The sum of four uniform numbers of 32 bits, minus its mean, and scaled from its variance of 1/3 to 1. The sum is
// exact, so that what is rounded, once, is the same everywhere; a logarithm and a cosine would not be.
double normal(const Draw& draw, std::uint64_t element) {
    const philox4x32_ctr_t counter{
        {static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32), draw.owner, draw.step}};
    const philox4x32_key_t key{{static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32)}};
    const philox4x32_ctr_t block = philox4x32_R(10, counter, key);
    std::int64_t sum = 0;
    for (const std::uint32_t word : block.v) sum += word;
    constexpr std::int64_t kMean = (std::int64_t{1} << 33) - 2;
    constexpr double kScale = 1.7320508075688772 / 4294967296.0;  // sqrt(3) / 2^32
    return static_cast<double>(sum - kMean) * kScale;
}

template <class T>
void draw_column(const Thin& q, std::size_t k, const Draw& draw) {
    T* values = column<T>(q, k);
    for (std::size_t i = 0; i < q.rows; ++i) values[i] = static_cast<T>(normal(draw, std::uint64_t{i} * q.columns + k));
}

template <class T>
void draw_zeros(const Thin& q, const Draw& draw) {
    for (std::size_t k = 0; k < q.columns; ++k) {
        const T* values = column<T>(q, k);
        if (std::all_of(values, values + q.rows, [](T x) { return x == 0; })) draw_column<T>(q, k, draw);
    }
}

// In f64, in four sums, which is a fixed order and lets the compiler use what vectors the baseline has.
template <class T>
double dot(const T* a, const T* b, std::size_t count) {
    double sums[4] = {0, 0, 0, 0};
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (std::size_t s = 0; s < 4; ++s) sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
    for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
double length(const T* a, std::size_t count) {
    return std::sqrt(dot(a, a, count));
}

// Removes from `values` what lies along the unit vector `along`.
template <class T>
void remove(T* values, const T* along, std::size_t count) {
    const T part = static_cast<T>(dot(along, values, count));
    for (std::size_t i = 0; i < count; ++i) values[i] -= part * along[i];
}

// What is left of a column may be little beside what was removed from it, and then holds the rounding errors of that:
// it is cleaned once more, and below a few units in the last place it is nothing but error.
template <class T>
void gram_schmidt(const Thin& a, double epsilon) {
    constexpr double kClean = 0.125;
    constexpr double kNothing = 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
    for (std::size_t k = 0; k < a.columns; ++k) {
        T* values = column<T>(a, k);
        const double before = length(values, a.rows);
        for (std::size_t other = 0; other < k; ++other) remove(values, column<T>(a, other), a.rows);
        double after = length(values, a.rows);
        if (after < kClean * before) {
            for (std::size_t other = 0; other < k; ++other) remove(values, column<T>(a, other), a.rows);
            after = length(values, a.rows);
        }
        if (!(after > kNothing * before)) {
            std::fill_n(values, a.rows, T{0});
            continue;
        }
        const double divisor = after + epsilon;
        for (std::size_t i = 0; i < a.rows; ++i) values[i] = static_cast<T>(values[i] / divisor);
    }
}

// A power of two by which the largest element comes near 1, so that no square of an element overflows or vanishes.
template <class T>
T scale_of(const T* values, std::size_t count) {
    T most = 0;
    for (std::size_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));
    return most > 0 ? std::ldexp(T{1}, std::clamp(-std::ilogb(most), -120, 120)) : T{1};
}

// Householder's, which never divides by what may be zero. Eigen's sums follow the alignment of its operands, so that
// must be the same on all ranks.
template <class T>
void householder(const Thin& a, T* workspace) {
    using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
    using Index = Eigen::Index;
    const auto rows = static_cast<Index>(a.rows), columns = static_cast<Index>(a.columns);
    Eigen::Map<Matrix, Eigen::Aligned16> factored(workspace, rows, columns), q(column<T>(a, 0), rows, columns);
    factored = q * scale_of(column<T>(a, 0), a.count());
    const Eigen::HouseholderQR<Eigen::Ref<Matrix>> qr(factored);
    Eigen::Matrix<T, 1, Eigen::Dynamic> row(columns);
    q.setIdentity();
    qr.householderQ().setLength(columns).applyThisOnTheLeft(q, row);
}

}  // namespace

void draw_columns(const Thin& q, const Draw& draw) {
    for (std::size_t k = 0; k < q.columns; ++k)
        q.dtype == DDP_F64 ? draw_column<double>(q, k, draw) : draw_column<float>(q, k, draw);
}

void draw_zero_columns(const Thin& q, const Draw& draw) {
    q.dtype == DDP_F64 ? draw_zeros<double>(q, draw) : draw_zeros<float>(q, draw);
}

void orthogonalize(const Thin& a, Method method, double epsilon, void* workspace) {
    if (method == Method::kGramSchmidt)
        a.dtype == DDP_F64 ? gram_schmidt<double>(a, epsilon) : gram_schmidt<float>(a, epsilon);
    else
        a.dtype == DDP_F64 ? householder(a, static_cast<double*>(workspace))
                           : householder(a, static_cast<float*>(workspace));
}

bool all_finite(const void* data, ddp_dtype dtype, std::size_t count) {
    const auto check = [count](const auto* values, auto finite) { return std::all_of(values, values + count, finite); };
    const auto real = [](auto x) { return std::isfinite(x); };
    // An exponent of ones only is that of infinities and NaNs.
    const auto half = [](std::uint16_t x) { return (x & 0x7c00) != 0x7c00; };
    const auto brain = [](std::uint16_t x) { return (x & 0x7f80) != 0x7f80; };
    switch (dtype) {
        case DDP_F64:
            return check(static_cast<const double*>(data), real);
        case DDP_F32:
            return check(static_cast<const float*>(data), real);
        case DDP_F16:
            return check(static_cast<const std::uint16_t*>(data), half);
        default:
            return check(static_cast<const std::uint16_t*>(data), brain);
    }
}

void fill_nan(void* data, ddp_dtype dtype, std::size_t count) {
    switch (dtype) {
        case DDP_F64:
            return void(std::fill_n(static_cast<double*>(data), count, std::numeric_limits<double>::quiet_NaN()));
        case DDP_F32:
            return void(std::fill_n(static_cast<float*>(data), count, std::numeric_limits<float>::quiet_NaN()));
        default:
            std::fill_n(static_cast<std::uint16_t*>(data), count, std::uint16_t(dtype == DDP_F16 ? 0x7e00 : 0x7fc0));
    }
}

}  // namespace libddp::powersgd
