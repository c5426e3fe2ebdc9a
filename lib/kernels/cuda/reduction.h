// A reduction in rank order, as threads of a kernel do it. Plain C++ can include this file: a test
// runs it on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ddp/types.h"
#include "kernels/arithmetic.h"
#include "kernels/cuda/formats.h"
#include "kernels/cuda/tables.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cuda {

constexpr int kInputs = 496;  // parameters of a kernel are 4 KiB at most

struct ReduceTable {
    void* out;
    std::uint64_t count;
    Factor factor;
    std::int32_t inputs;
    ddp_reduce_op op;
    bool aligned;  // out and every input to 16 bytes
    const void* input[kInputs];
};
static_assert(sizeof(ReduceTable) <= 4096);

// Integers wrap.
template <class T>
LIBDDP_EVERYWHERE T sum(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
        return a + b;
    }
}
template <class T>
LIBDDP_EVERYWHERE T product(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
    } else {
        return a * b;
    }
}
// A NaN in either gives NaN, which the GPU's own minimum would not.
template <class T>
LIBDDP_EVERYWHERE T minimum(T a, T b) {
    return b < a || b != b ? b : a;
}
template <class T>
LIBDDP_EVERYWHERE T maximum(T a, T b) {
    return a < b || b != b ? b : a;
}
// Only products of complex numbers come as such: a sum is that of the parts.
template <class T>
LIBDDP_EVERYWHERE Complex<T> combine(Complex<T> a, Complex<T> b, ddp_reduce_op) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class T>
LIBDDP_EVERYWHERE T combine(T a, T b, ddp_reduce_op op) {
    switch (op) {
        case DDP_PROD:
            return product(a, b);
        case DDP_MIN:
            return minimum(a, b);
        case DDP_MAX:
            return maximum(a, b);
        default:
            return sum(a, b);
    }
}

template <class Format>
inline constexpr std::uint32_t kReduceElements = 16 / sizeof(typename Format::Stored);

// Elements from `begin` to `end`, one by one.
template <class Format>
LIBDDP_EVERYWHERE void reduce_singly(const ReduceTable& table, std::uint64_t begin,
                                     std::uint64_t end) {
    using Stored = typename Format::Stored;
    for (std::uint64_t i = begin; i < end; ++i) {
        auto value = Format::load(static_cast<const Stored*>(table.input[0])[i]);
        for (int k = 1; k < table.inputs; ++k)
            value = combine(value, Format::load(static_cast<const Stored*>(table.input[k])[i]),
                            table.op);
        static_cast<Stored*>(table.out)[i] = Format::store(scaled(value, table.factor));
    }
}

// The share of one thread, of as many as there are chunks of 16 bytes.
template <class Format>
LIBDDP_EVERYWHERE void reduce_thread(const ReduceTable& table, std::uint64_t thread) {
    using Stored = typename Format::Stored;
    constexpr std::uint32_t kElements = kReduceElements<Format>;
    const std::uint64_t begin = thread * kElements;
    if (begin >= table.count) return;
    if (!table.aligned || begin + kElements > table.count)
        return reduce_singly<Format>(
            table, begin, begin + kElements < table.count ? begin + kElements : table.count);
    Stored stored[kElements];
    typename Format::Compute values[kElements];
    load_aligned(stored, static_cast<const Stored*>(table.input[0]) + begin);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kElements; ++i) values[i] = Format::load(stored[i]);
    for (int k = 1; k < table.inputs; ++k) {
        load_aligned(stored, static_cast<const Stored*>(table.input[k]) + begin);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kElements; ++i)
            values[i] = combine(values[i], Format::load(stored[i]), table.op);
    }
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kElements; ++i)
        stored[i] = Format::store(scaled(values[i], table.factor));
    store_aligned(static_cast<Stored*>(table.out) + begin, stored);
}

// The parameters of a kernel for ddp_device_module.reduce. Throws UNSUPPORTED and LIMIT.
inline ReduceTable reduce_table(void* out, const void* const* inputs, std::size_t input_count,
                                std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
                                double scale) {
    if (!cpu::can_reduce(dtype, op))
        fail(DDP_ERROR_UNSUPPORTED, "reduction ", op, " of elements of type ", dtype_name(dtype),
             " is not supported");
    if (input_count == 0 || input_count > static_cast<std::size_t>(kInputs))
        fail(DDP_ERROR_LIMIT, "a reduction on a GPU has 1 to ", kInputs, " inputs, not ",
             input_count);
    ReduceTable table;
    table.out = out;
    table.count = is_complex(dtype) && op != DDP_PROD ? 2 * count : count;
    table.factor = factor_of(scale, dtype);
    table.inputs = static_cast<std::int32_t>(input_count);
    table.op = op;
    std::uint64_t bits = address(out);
    for (std::size_t i = 0; i < input_count; ++i) {
        table.input[i] = inputs[i];
        bits |= address(inputs[i]);
    }
    table.aligned = (bits & 15u) == 0;
    return table;
}

// Calls use(Format()) with the format that such a reduction is done in.
template <class Use>
void with_reduce_format(ddp_dtype dtype, ddp_reduce_op op, Use use) {
    switch (dtype) {
        case DDP_I32:
            return use(I32());
        case DDP_I64:
            return use(I64());
        case DDP_U8:
            return use(U8());
        case DDP_C64:
            return op == DDP_PROD ? use(C64()) : use(F32());
        case DDP_C128:
            return op == DDP_PROD ? use(C128()) : use(F64());
        default:
            return with_floating(dtype, use);
    }
}

}  // namespace libddp::cuda
