// Sums for norms, compiled for every instruction set and chosen at run time, in the order of
// norm_order.h whatever the width of vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_simd.cc"
// The order of these two matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/arithmetic.h"
#include "kernels/cpu/half-inl.h"
#include "kernels/dtype.h"
#include "kernels/norm_order.h"
#include "util/error.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using norm_order::kPart, norm_order::kSums, norm_order::kTotals;

// Numbers as f64.
template <class Type, class D>
HWY_INLINE hn::Vec<D> load_f64(D d, const typename Type::Stored* p) {
    if constexpr (sizeof(typename Type::Compute) == 8) {
        return Type::load(d, p);
    } else {
        const hn::Rebind<float, D> narrow;
        return hn::PromoteTo(d, Type::load(narrow, p));
    }
}

struct Squares {
    template <class V>
    static HWY_INLINE V term(V v) {
        return hn::Mul(v, v);
    }
    template <class V>
    static HWY_INLINE V with(V sum, V term) {
        return hn::Add(sum, term);
    }
};
struct Magnitudes : Squares {
    template <class V>
    static HWY_INLINE V term(V v) {
        return hn::Abs(v);
    }
};
// NaN is the largest of all.
struct Largest : Magnitudes {
    template <class V>
    static HWY_INLINE V with(V most, V term) {
        const auto more = hn::Or(hn::Gt(term, most), hn::IsNaN(term));
        return hn::IfThenElse(hn::AndNot(hn::IsNaN(most), more), term, most);
    }
};

// sums: kSums of them, which the terms of the numbers are added to. load(d, i): numbers from i on.
template <class Kind, class Load>
HWY_INLINE void add_terms(double* HWY_RESTRICT sums, std::size_t count, Load load) {
    std::size_t i = 0;
#if !HWY_HAVE_SCALABLE
    const hn::CappedTag<double, kSums> d;
    constexpr std::size_t kLanes = hn::MaxLanes(d), kVectors = kSums / kLanes;
    hn::Vec<decltype(d)> partial[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Load(d, sums + v * kLanes);
    for (; i + kSums <= count; i += kSums) HWY_UNROLL(kVectors)
    for (std::size_t v = 0; v < kVectors; ++v)
        partial[v] = Kind::with(partial[v], Kind::term(load(d, i + v * kLanes)));
    for (std::size_t v = 0; v < kVectors; ++v) hn::Store(partial[v], d, sums + v * kLanes);
#endif
    const hn::CappedTag<double, 1> one;
    for (; i < count; ++i) {
        double& sum = sums[i % kSums];
        sum = hn::GetLane(Kind::with(hn::Set(one, sum), Kind::term(load(one, i))));
    }
}

template <class Kind>
double with(double sum, double term) {
    const hn::CappedTag<double, 1> one;
    return hn::GetLane(Kind::with(hn::Set(one, sum), hn::Set(one, term)));
}

// Adds up n sums, of which those from `used` on are 0.
template <class Kind>
double combine(double* sums, std::size_t n, std::size_t used) {
    for (std::size_t half = n / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half && i + half < used; ++i)
            sums[i] = with<Kind>(sums[i], sums[i + half]);
    return sums[0];
}

// complex: of a complex number the magnitude counts, and `count` is of those.
template <class Kind, class Type>
double sum_of_part(const typename Type::Stored* p, std::size_t count, bool complex) {
    HWY_ALIGN double sums[kSums] = {};
    if (complex) {
        add_terms<Kind>(sums, count, [p](auto d, std::size_t i) {
            HWY_ALIGN double magnitudes[kSums];
            for (std::size_t k = 0; k < hn::Lanes(d); ++k) {
                const auto re = static_cast<double>(p[2 * (i + k)]);
                const auto im = static_cast<double>(p[2 * (i + k) + 1]);
                magnitudes[k] = std::sqrt(re * re + im * im);
            }
            return hn::Load(d, magnitudes);
        });
    } else {
        add_terms<Kind>(sums, count,
                        [p](auto d, std::size_t i) { return load_f64<Type>(d, p + i); });
    }
    return combine<Kind>(sums, kSums, kSums);
}

template <class Kind, class Type>
double sum_of(const void* data, std::size_t count, bool complex) {
    const auto* const p = static_cast<const typename Type::Stored*>(data);
    const std::size_t parts = norm_order::parts(count);
    if (parts <= 1) return sum_of_part<Kind, Type>(p, count, complex);
    double totals[kTotals] = {};
    for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t first = part * kPart;
        double& total = totals[part % kTotals];
        total = with<Kind>(total, sum_of_part<Kind, Type>(p + (complex ? 2 : 1) * first,
                                                          std::min(kPart, count - first), complex));
    }
    return combine<Kind>(totals, kTotals, std::min(parts, kTotals));
}

template <class Kind>
double sum_as(const void* data, std::size_t count, ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return sum_of<Kind, F16>(data, count, false);
        case DDP_BF16:
            return sum_of<Kind, BF16>(data, count, false);
        case DDP_F32:
            return sum_of<Kind, F32>(data, count, false);
        case DDP_F64:
            return sum_of<Kind, F64>(data, count, false);
        case DDP_C64:
            return sum_of<Kind, F32>(data, count, true);
        case DDP_C128:
            return sum_of<Kind, F64>(data, count, true);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "no norm of ", dtype_name(dtype));
    }
}

double norm_terms_target(const void* data, std::size_t count, ddp_dtype dtype, NormKind kind) {
    if (kind == NormKind::kLargest) return sum_as<Largest>(data, count, dtype);
    if (kind == NormKind::kMagnitudes) return sum_as<Magnitudes>(data, count, dtype);
    const std::size_t numbers = norm_order::numbers(count, dtype, true);
    if (dtype == DDP_C64) return sum_as<Squares>(data, numbers, DDP_F32);
    if (dtype == DDP_C128) return sum_as<Squares>(data, numbers, DDP_F64);
    return sum_as<Squares>(data, numbers, dtype);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(norm_terms_target);

double norm_terms(const void* data, std::size_t count, ddp_dtype dtype, NormKind kind) {
    const double sum = HWY_DYNAMIC_DISPATCH(norm_terms_target)(data, count, dtype, kind);
    return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
}

double add_norm_terms(double a, double b, NormKind kind) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    return kind == NormKind::kLargest ? std::max(a, b) : a + b;
}

}  // namespace libddp::cpu
#endif
