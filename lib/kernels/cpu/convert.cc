// Conversions among the floating point types.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
// The order of these three matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"
// clang-format on

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

template <class From, class To>
void convert_as(void* dst, const void* src, std::size_t count) {
    const auto* in = static_cast<const typename From::Stored*>(src);
    auto* out = static_cast<typename To::Stored*>(dst);
    for_each_vector<float>(
        0, count, [=](auto d, std::size_t i) { To::store(d, From::load(d, in + i), out + i); });
}

// Among f16, bf16 and f32.
void convert_target(void* dst, ddp_dtype dst_dtype, const void* src, ddp_dtype src_dtype,
                    std::size_t count) {
    if (src_dtype == DDP_F32)
        return dst_dtype == DDP_F16 ? convert_as<F32, F16>(dst, src, count)
                                    : convert_as<F32, BF16>(dst, src, count);
    if (src_dtype == DDP_F16)
        return dst_dtype == DDP_F32 ? convert_as<F16, F32>(dst, src, count)
                                    : convert_as<F16, BF16>(dst, src, count);
    return dst_dtype == DDP_F32 ? convert_as<BF16, F32>(dst, src, count)
                                : convert_as<BF16, F16>(dst, src, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {
namespace {

HWY_EXPORT(convert_target);

void convert_small(void* dst, ddp_dtype dst_dtype, const void* src, ddp_dtype src_dtype,
                   std::size_t count) {
    HWY_DYNAMIC_DISPATCH(convert_target)(dst, dst_dtype, src, src_dtype, count);
}

// Rounds to f32 so that rounding once more, to f16 or bf16, gives what one rounding would have
// given: truncated, with the last bit set if anything was lost ("round to odd").
float round_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    const double back = nearest;
    if (back == value || std::isnan(value)) return nearest;
    auto bits = std::bit_cast<std::uint32_t>(nearest);
    if (std::fabs(back) > std::fabs(value)) --bits;
    return std::bit_cast<float>(bits | 1u);
}

// f64 to or from a 16-bit type goes through blocks of f32.
constexpr std::size_t kBlock = 512;

void from_f64(void* dst, ddp_dtype dst_dtype, const double* src, std::size_t count) {
    float block[kBlock];
    auto* out = static_cast<std::uint16_t*>(dst);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, count - begin);
        std::transform(src + begin, src + begin + n, block, round_to_odd);
        convert_small(out + begin, dst_dtype, block, DDP_F32, n);
    }
}

void to_f64(double* dst, const void* src, ddp_dtype src_dtype, std::size_t count) {
    float block[kBlock];
    const auto* in = static_cast<const std::uint16_t*>(src);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, count - begin);
        convert_small(block, DDP_F32, in + begin, src_dtype, n);
        std::copy_n(block, n, dst + begin);
    }
}

void convert_real(void* dst, ddp_dtype dst_dtype, const void* src, ddp_dtype src_dtype,
                  std::size_t count) {
    if (src_dtype == DDP_F64 && dst_dtype == DDP_F32) {
        const auto* in = static_cast<const double*>(src);
        std::transform(in, in + count, static_cast<float*>(dst),
                       [](double x) { return static_cast<float>(x); });
    } else if (src_dtype == DDP_F32 && dst_dtype == DDP_F64) {
        std::copy_n(static_cast<const float*>(src), count, static_cast<double*>(dst));
    } else if (src_dtype == DDP_F64) {
        from_f64(dst, dst_dtype, static_cast<const double*>(src), count);
    } else if (dst_dtype == DDP_F64) {
        to_f64(static_cast<double*>(dst), src, src_dtype, count);
    } else {
        convert_small(dst, dst_dtype, src, src_dtype, count);
    }
}

ddp_dtype part_of(ddp_dtype complex) {
    return complex == DDP_C64 ? DDP_F32 : DDP_F64;
}

}  // namespace

void convert(void* dst, ddp_dtype dst_dtype, const void* src, ddp_dtype src_dtype,
             std::size_t count) {
    if (!is_floating(dst_dtype) || !is_floating(src_dtype) ||
        is_complex(dst_dtype) != is_complex(src_dtype))
        fail(DDP_ERROR_UNSUPPORTED, "conversion from ", dtype_name(src_dtype), " to ",
             dtype_name(dst_dtype), " is not supported");
    if (count == 0) return;
    if (dst_dtype == src_dtype)
        std::memcpy(dst, src, count * dtype_size(src_dtype));
    else if (is_complex(dst_dtype))
        convert_real(dst, part_of(dst_dtype), src, part_of(src_dtype), 2 * count);
    else
        convert_real(dst, dst_dtype, src, src_dtype, count);
}

}  // namespace libddp::cpu
#endif
