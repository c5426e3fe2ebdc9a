// The front of the arithmetic: what is supported, and which path does it. Here is the plain path
// too, for integers and products of complex numbers: templated loops that the compiler vectorises
// where it can.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/arithmetic.h"
#include "kernels/cpu/reduce_simd.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cpu {
namespace {

// Elements accumulated at a time: small enough for the stack and the L1 cache.
constexpr std::size_t kBlock = 512;

// std::complex's product looks for infinities in the slow way of C99's annex G, and its
// compiler-generated call cannot be vectorised. Trainers expect what a GPU computes: the plain
// formula.
template <class T>
struct Complex {
    T re, im;
};

struct Sum {
    template <class T>
    T operator()(T a, T b) const {
        // Unsigned, because signed overflow is undefined and the contract is to wrap.
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    }
};
struct Product {
    template <class T>
    T operator()(T a, T b) const {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
    }
    template <class T>
    Complex<T> operator()(Complex<T> a, Complex<T> b) const {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
};
struct Minimum {
    template <class T>
    T operator()(T a, T b) const {
        return std::min(a, b);
    }
};
struct Maximum {
    template <class T>
    T operator()(T a, T b) const {
        return std::max(a, b);
    }
};

template <class T>
void finish(T* values, std::size_t count, double scale) {
    if (scale == 1) return;
    // Wider than T: a world of 256 is 0 as a u8.
    const auto divisor = static_cast<std::common_type_t<T, std::int32_t>>(std::llround(1 / scale));
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / divisor);
}

template <class T>
void finish(Complex<T>* values, std::size_t count, double scale) {
    const T factor = static_cast<T>(scale);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = {values[i].re * factor, values[i].im * factor};
}

template <class T, class Op>
void reduce_as(const Reduction& r) {
    T block[kBlock];
    for (std::size_t begin = 0; begin < r.count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, r.count - begin);
        std::copy_n(static_cast<const T*>(r.inputs[0]) + begin, n, block);
        for (std::size_t j = 1; j < r.input_count; ++j) {
            const T* input = static_cast<const T*>(r.inputs[j]) + begin;
            for (std::size_t i = 0; i < n; ++i) block[i] = Op{}(block[i], input[i]);
        }
        finish(block, n, r.scale);
        for (std::size_t k = 0; k < r.out_count; ++k)
            std::copy_n(block, n, static_cast<T*>(r.outs[k]) + begin);
    }
}

template <class T>
void reduce_op(const Reduction& r) {
    switch (r.op) {
        case DDP_PROD:
            return reduce_as<T, Product>(r);
        case DDP_MIN:
            return reduce_as<T, Minimum>(r);
        case DDP_MAX:
            return reduce_as<T, Maximum>(r);
        default:
            return reduce_as<T, Sum>(r);
    }
}

// i32, i64, u8 and all four operations; c64, c128 and PROD.
void reduce_plain(const Reduction& r) {
    switch (r.dtype) {
        case DDP_I32:
            return reduce_op<std::int32_t>(r);
        case DDP_I64:
            return reduce_op<std::int64_t>(r);
        case DDP_C64:
            return reduce_as<Complex<float>, Product>(r);
        case DDP_C128:
            return reduce_as<Complex<double>, Product>(r);
        default:
            return reduce_op<std::uint8_t>(r);
    }
}

}  // namespace

bool can_reduce(ddp_dtype dtype, ddp_reduce_op op) {
    if (dtype_size(dtype) == 0) return false;
    if (op == DDP_SUM || op == DDP_PROD) return true;
    return (op == DDP_MIN || op == DDP_MAX) && !is_complex(dtype);
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale) {
    reduce_to(&out, 1, inputs, input_count, count, dtype, op, scale);
}

void reduce_to(void* const* outs, std::size_t out_count, const void* const* inputs,
               std::size_t input_count, std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
               double scale) {
    if (!can_reduce(dtype, op))
        fail(DDP_ERROR_UNSUPPORTED, "reduction ", op, " of elements of type ", dtype_name(dtype),
             " is not supported");
    if (count == 0) return;
    if (input_count == 1 && scale == 1) {
        // memmove: out may be the input itself.
        for (std::size_t k = 0; k < out_count; ++k)
            if (outs[k] != inputs[0]) std::memmove(outs[k], inputs[0], count * dtype_size(dtype));
        return;
    }
    Reduction r{outs, out_count, inputs, input_count, count, dtype, op, scale};
    if (is_complex(dtype) && (op != DDP_PROD || input_count == 1)) {
        r.count = 2 * count;
        r.dtype = dtype == DDP_C64 ? DDP_F32 : DDP_F64;
        r.op = DDP_SUM;
        reduce_simd(r);
    } else if (is_floating(dtype) && !is_complex(dtype)) {
        reduce_simd(r);
    } else {
        reduce_plain(r);
    }
}

void scale_copy(void* dst, const void* src, std::size_t count, ddp_dtype dtype, double scale) {
    reduce(dst, &src, 1, count, dtype, DDP_SUM, scale);
}

}  // namespace libddp::cpu
