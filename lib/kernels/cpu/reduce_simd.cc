// Reductions of real floating point numbers, compiled for every instruction set and chosen at run
// time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce_simd.cc"
// The order of these three matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"
// clang-format on

#include "kernels/cpu/reduce_simd.h"

#include "kernels/arithmetic.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

struct Add {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return hn::Add(a, b);
    }
};
struct Multiply {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return hn::Mul(a, b);
    }
};
// The hardware's minimum and maximum forget a NaN in one operand or the other, depending on the
// instruction set.
template <class V>
HWY_INLINE V nan_or(V a, V b, V otherwise) {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, otherwise));
}
struct Minimum {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return nan_or(a, b, hn::Min(a, b));
    }
};
struct Maximum {
    template <class V>
    HWY_INLINE V operator()(V a, V b) const {
        return nan_or(a, b, hn::Max(a, b));
    }
};

template <class Format, class Op>
void reduce_as(const Reduction& r) {
    using T = typename Format::Compute;
    using Stored = typename Format::Stored;
    const auto input = [&r](std::size_t j) { return static_cast<const Stored*>(r.inputs[j]); };
    const auto out = [&r](std::size_t k) { return static_cast<Stored*>(r.outs[k]); };
    const T factor = static_cast<T>(r.scale);
    const Op op{};

    // Four vectors at a time hide the latency of the adds and read each input in runs of at least
    // 64 bytes. Multiplying by 1 changes nothing and costs nothing beside the memory traffic.
    const hn::ScalableTag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    const auto factors = hn::Set(d, factor);
    std::size_t i = 0;
    for (; i + 4 * lanes <= r.count; i += 4 * lanes) {
        const Stored* p = input(0) + i;
        auto a = Format::load(d, p);
        auto b = Format::load(d, p + lanes);
        auto c = Format::load(d, p + 2 * lanes);
        auto e = Format::load(d, p + 3 * lanes);
        for (std::size_t j = 1; j < r.input_count; ++j) {
            p = input(j) + i;
            a = op(a, Format::load(d, p));
            b = op(b, Format::load(d, p + lanes));
            c = op(c, Format::load(d, p + 2 * lanes));
            e = op(e, Format::load(d, p + 3 * lanes));
        }
        a = hn::Mul(a, factors);
        b = hn::Mul(b, factors);
        c = hn::Mul(c, factors);
        e = hn::Mul(e, factors);
        for (std::size_t k = 0; k < r.out_count; ++k) {
            Stored* q = out(k) + i;
            Format::store(d, a, q);
            Format::store(d, b, q + lanes);
            Format::store(d, c, q + 2 * lanes);
            Format::store(d, e, q + 3 * lanes);
        }
    }
    for_each_vector<T>(i, r.count, [&](auto tag, std::size_t at) {
        auto a = Format::load(tag, input(0) + at);
        for (std::size_t j = 1; j < r.input_count; ++j) a = op(a, Format::load(tag, input(j) + at));
        a = hn::Mul(a, hn::Set(tag, factor));
        for (std::size_t k = 0; k < r.out_count; ++k) Format::store(tag, a, out(k) + at);
    });
}

template <class Format>
void reduce_op(const Reduction& r) {
    switch (r.op) {
        case DDP_PROD:
            return reduce_as<Format, Multiply>(r);
        case DDP_MIN:
            return reduce_as<Format, Minimum>(r);
        case DDP_MAX:
            return reduce_as<Format, Maximum>(r);
        default:
            return reduce_as<Format, Add>(r);
    }
}

void reduce_target(const Reduction& r) {
    switch (r.dtype) {
        case DDP_F16:
            return reduce_op<F16>(r);
        case DDP_BF16:
            return reduce_op<BF16>(r);
        case DDP_F64:
            return reduce_op<F64>(r);
        default:
            return reduce_op<F32>(r);
    }
}

const char* target_name() {
    return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(reduce_target);
HWY_EXPORT(target_name);

void reduce_simd(const Reduction& r) {
    HWY_DYNAMIC_DISPATCH(reduce_target)(r);
}

const char* instruction_set() {
    return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace libddp::cpu
#endif
