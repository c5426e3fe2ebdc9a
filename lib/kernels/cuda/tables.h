// From lists of segments to the parameters of kernels. Plain C++.
#pragma once

#include <cmath>
#include <cstddef>

#include "ddp/types.h"
#include "kernels/device_kernels.h"
#include "kernels/cuda/chunks.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cuda {

inline Factor factor_of(double scale, ddp_dtype dtype) {
    Factor factor;
    factor.scale = scale;
    if (!is_floating(dtype) && scale != 1) factor.divisor = std::llround(1 / scale);
    return factor;
}

// The two numbers of a complex one are carried by themselves.
inline ddp_dtype part_of(ddp_dtype dtype) {
    return dtype == DDP_C64 ? DDP_F32 : dtype == DDP_C128 ? DDP_F64 : dtype;
}

// Calls use(table) for tables that hold all segments. elements: of a whole chunk. parts: numbers of which an element is made.
template <class Use>
void each_table(const ddp_segment* segments, std::size_t count, std::size_t dst_size, std::uint32_t elements,
                std::size_t parts, const Factor& factor, Use use) {
    Table table;
    table.factor = factor;
    table.chunks = 0;
    table.rows = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const ddp_segment& segment = segments[i];
        const std::uint64_t numbers = segment.count * parts;
        if (numbers == 0) continue;
        if (table.rows == kRows) {
            use(table);
            table.chunks = 0;
            table.rows = 0;
        }
        table.row[table.rows++] = {static_cast<const unsigned char*>(segment.src),
                                   static_cast<unsigned char*>(segment.dst), numbers, table.chunks};
        table.chunks += chunks_of(segment.dst, dst_size, numbers, elements);
    }
    if (table.rows > 0) use(table);
}

inline std::uint64_t blocks_of(const Table& table) {
    return (table.chunks + kChunksPerBlock - 1) / kChunksPerBlock;
}

// Calls use(From(), To(), scales) with the formats that a transfer needs, scales: a compile-time bool. Throws UNSUPPORTED.
template <class Use>
void with_formats(ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale, Use use) {
    const auto refuse = [&] {
        fail(DDP_ERROR_UNSUPPORTED, "conversion from ", dtype_name(src_dtype), " to ", dtype_name(dst_dtype),
             " is not supported");
    };
    if (dtype_size(src_dtype) == 0 || dtype_size(dst_dtype) == 0) refuse();
    if (src_dtype != dst_dtype &&
        (!is_floating(src_dtype) || !is_floating(dst_dtype) || is_complex(src_dtype) != is_complex(dst_dtype)))
        refuse();
    const ddp_dtype from = part_of(src_dtype), to = part_of(dst_dtype);
    constexpr std::bool_constant<true> kScales;
    constexpr std::bool_constant<false> kCopies;
    if (from == to && scale == 1) {
        switch (dtype_size(from)) {
            case 1:
                return use(U8(), U8(), kCopies);
            case 2:
                return use(Bits16(), Bits16(), kCopies);
            case 4:
                return use(I32(), I32(), kCopies);
            default:
                return use(I64(), I64(), kCopies);
        }
    }
    switch (from) {
        case DDP_U8:
            return use(U8(), U8(), kScales);
        case DDP_I32:
            return use(I32(), I32(), kScales);
        case DDP_I64:
            return use(I64(), I64(), kScales);
        default:
            return with_floating(
                from, [&](auto source) { with_floating(to, [&](auto target) { use(source, target, kScales); }); });
    }
}

}  // namespace libddp::cuda
