// Vectors of f16 and bf16 as f32 and back, for the target that foreach_target.h is compiling.
// Highway 1.0 truncates when it demotes to bf16, and truncates and loses infinities when it
// emulates f16 (below AVX2), so both are done here.

// Per-target include guard: this file is compiled once for each instruction set.
#if defined(LIBDDP_CPU_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBDDP_CPU_HALF_INL_H_
#undef LIBDDP_CPU_HALF_INL_H_
#else
#define LIBDDP_CPU_HALF_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#undef LIBDDP_NATIVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || HWY_ARCH_ARM_A64
#define LIBDDP_NATIVE_F16 1
#else
#define LIBDDP_NATIVE_F16 0
#endif

// Memory format -> vectors of the type that arithmetic is done in. D is a tag of Compute.
template <class T>
struct Native {
    using Stored = T;
    using Compute = T;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const Stored* p) {
        return hn::LoadU(d, p);
    }
    template <class D>
    static HWY_INLINE void store(D d, hn::Vec<D> v, Stored* p) {
        hn::StoreU(v, d, p);
    }
};
using F32 = Native<float>;
using F64 = Native<double>;

struct BF16 {
    using Stored = std::uint16_t;
    using Compute = float;
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<std::uint32_t, D> d32;
        return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
    }
    template <class D>
    static HWY_INLINE void store(D, hn::Vec<D> v, Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<std::uint32_t, D> d32;
        const auto bits = hn::BitCast(d32, v);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
        const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd);
        // A NaN whose payload sits in the lower half would become an infinity: keep the upper half
        // and set the quiet bit.
        const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
        const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
        const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
        hn::StoreU(hn::TruncateTo(d16, upper), d16, p);
    }
};

struct F16 {
    using Stored = std::uint16_t;
    using Compute = float;

#if LIBDDP_NATIVE_F16
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<hwy::float16_t, D> df16;
        return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(d16, p)));
    }
    template <class D>
    static HWY_INLINE void store(D, hn::Vec<D> v, Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<hwy::float16_t, D> df16;
        hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, v)), d16, p);
    }
#else
    template <class D>
    static HWY_INLINE hn::Vec<D> load(D d, const Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<std::uint32_t, D> d32;
        const auto half = hn::PromoteTo(d32, hn::LoadU(d16, p));
        const auto exponent_mask = hn::Set(d32, 0x7c00u << 13);
        const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fffu)));
        const auto exponent = hn::And(shifted, exponent_mask);
        const auto normal = hn::Add(shifted, hn::Set(d32, 112u << 23));
        const auto special = hn::Add(normal, hn::Set(d32, 112u << 23));
        // Subnormal: give it the exponent of 2^-14 and subtract 2^-14 again. Never touches an f32
        // subnormal, so it is right also in a program that flushes those to zero.
        const auto lifted = hn::BitCast(d, hn::Add(normal, hn::Set(d32, 1u << 23)));
        const auto subnormal =
            hn::BitCast(d32, hn::Sub(lifted, hn::BitCast(d, hn::Set(d32, 113u << 23))));
        auto magnitude = hn::IfThenElse(hn::Eq(exponent, exponent_mask), special, normal);
        magnitude = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d32)), subnormal, magnitude);
        const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000u)));
        return hn::BitCast(d, hn::Or(magnitude, sign));
    }
    template <class D>
    static HWY_INLINE void store(D d, hn::Vec<D> v, Stored* p) {
        const hn::Rebind<std::uint16_t, D> d16;
        const hn::Rebind<std::uint32_t, D> d32;
        const hn::Rebind<std::int32_t, D> di32;
        const auto bits = hn::BitCast(d32, v);
        const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffffffu));
        const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));

        const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1u));
        const auto biased = hn::Add(magnitude, hn::Set(d32, 0xfffu - (112u << 23)));
        const auto normal = hn::ShiftRight<13>(hn::Add(biased, odd));
        // Below 2^-14 the result is subnormal: adding 0.5 puts its last bit where the adder rounds,
        // to nearest even.
        const auto half = hn::Set(d32, 126u << 23);
        const auto rounded = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half));
        const auto subnormal = hn::Sub(hn::BitCast(d32, rounded), half);
        const auto infinity = hn::Set(d32, 0x7c00u);
        const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x3ffu));
        const auto nan = hn::Or(hn::Set(d32, 0x7e00u), payload);

        // Magnitudes are below 2^31, so signed comparison, which every target has, orders them.
        const auto size = hn::BitCast(di32, magnitude);
        auto result = hn::IfThenElse(hn::RebindMask(d32, hn::Lt(size, hn::Set(di32, 113 << 23))),
                                     subnormal, normal);
        result = hn::IfThenElse(hn::RebindMask(d32, hn::Gt(size, hn::Set(di32, (143 << 23) - 1))),
                                infinity, result);
        result = hn::IfThenElse(hn::RebindMask(d32, hn::Gt(size, hn::Set(di32, 255 << 23))), nan,
                                result);
        hn::StoreU(hn::TruncateTo(d16, hn::Or(result, sign)), d16, p);
    }
#endif
};

// Calls body(tag, index) for whole vectors of T, then one lane at a time for what is left. Both
// paths use the same operations, so that an element's bits do not depend on where in a buffer it
// lies.
template <class T, class Body>
HWY_INLINE void for_each_vector(std::size_t begin, std::size_t count, Body body) {
    const hn::ScalableTag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = begin;
    for (; i + lanes <= count; i += lanes) body(d, i);
    const hn::CappedTag<T, 1> one;
    for (; i < count; ++i) body(one, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
