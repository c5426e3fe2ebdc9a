// Looks for NaN and infinity, compiled for every instruction set and chosen at run time. By the
// bits: an exponent of ones says it all, and no arithmetic raises an exception or is slow on
// subnormal numbers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/finite_simd.cc"
// The order of these two matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/cpu/finite_simd.h"

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Word: the bits of a number. Lane: what vectors take the maximum of, which is fast for every
// instruction set; of a number with two lanes the upper one has the whole exponent. to: where the
// numbers are copied; null: nowhere.
template <class Lane, bool kCopy, class Word>
bool any_as(Word* to, const Word* p, std::size_t count, Word exponent) {
    const hn::ScalableTag<Lane> d;
    const hn::Repartition<Word, decltype(d)> words;
    const std::size_t lanes = hn::Lanes(words);
    const auto mask = hn::BitCast(d, hn::Set(words, exponent));
    const auto largest = [&](auto so_far, std::size_t at) {
        const auto numbers = hn::LoadU(words, p + at);
        if constexpr (kCopy) hn::StoreU(numbers, words, to + at);
        return hn::Max(so_far, hn::And(hn::BitCast(d, numbers), mask));
    };
    auto a = hn::Zero(d), b = a, c = a, e = a;
    std::size_t i = 0;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
        a = largest(a, i);
        b = largest(b, i + lanes);
        c = largest(c, i + 2 * lanes);
        e = largest(e, i + 3 * lanes);
    }
    for (; i + lanes <= count; i += lanes) a = largest(a, i);
    a = hn::Max(hn::Max(a, b), hn::Max(c, e));
    const auto upper = static_cast<Lane>(exponent >> 8 * (sizeof(Word) - sizeof(Lane)));
    bool any = !hn::AllFalse(d, hn::Eq(a, hn::Set(d, upper)));
    for (; i < count; ++i) {
        any = any || (p[i] & exponent) == exponent;
        if constexpr (kCopy) to[i] = p[i];
    }
    return any;
}

template <class Lane, class Word>
bool any_of(void* to, const void* numbers, std::size_t count, std::uint64_t exponent) {
    auto* const p = static_cast<const Word*>(numbers);
    if (!to) return any_as<Lane, false, Word>(nullptr, p, count, static_cast<Word>(exponent));
    return any_as<Lane, true>(static_cast<Word*>(to), p, count, static_cast<Word>(exponent));
}

bool any_target(void* to, const void* numbers, std::size_t count, std::uint64_t exponent,
                std::size_t size) {
    if (size == 2) return any_of<std::int16_t, std::uint16_t>(to, numbers, count, exponent);
    if (size == 4) return any_of<std::int32_t, std::uint32_t>(to, numbers, count, exponent);
    return any_of<std::int32_t, std::uint64_t>(to, numbers, count, exponent);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(any_target);

bool any_nonfinite(void* to, const void* numbers, std::size_t count, std::uint64_t exponent,
                   std::size_t size) {
    return HWY_DYNAMIC_DISPATCH(any_target)(to, numbers, count, exponent, size);
}

}  // namespace libddp::cpu
#endif
