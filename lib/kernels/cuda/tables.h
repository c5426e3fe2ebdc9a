// How a transfer is divided among the threads of a kernel. Plain C++ can include this file: a test
// runs it on the CPU.
//
// Each segment is cut into chunks whose places in the destination are aligned to 16 bytes; the
// first and the last may be shorter. All chunks of all segments are counted through, and each block
// of threads takes the same number of them, so that work is divided by bytes whatever the sizes of
// the segments. A thread finds a chunk's segment in a table that is a parameter of the kernel:
// nothing has to be copied to the device first, nor kept until the kernel ends.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ddp/types.h"
#include "kernels/cuda/formats.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cuda {

constexpr int kThreads = 256;
constexpr int kChunksPerThread = 4;  // so many loads are under way before the first store
constexpr std::uint64_t kChunksPerBlock = kThreads * kChunksPerThread;

struct Row {
    const unsigned char* src;  // null: zeros
    unsigned char* dst;
    std::uint64_t count;        // elements
    std::uint64_t first_chunk;  // of this segment, among all
};

constexpr int kRows = 124;  // parameters of a kernel are 4 KiB at most

struct Table {
    std::uint64_t chunks;  // of all rows
    Factor factor;
    std::int32_t rows;
    Row row[kRows];
};
static_assert(sizeof(Table) <= 4096);

LIBDDP_EVERYWHERE std::uint64_t address(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

// Elements of a whole chunk: 16 bytes of the destination. Then neighbouring threads store what lies
// side by side, and no store leaves gaps that the memory has to fill.
template <class To>
inline constexpr std::uint32_t kChunkElements = 16 / sizeof(typename To::Stored);

// By how many elements the segment's first chunk begins before its first element.
LIBDDP_EVERYWHERE std::uint32_t lead_of(const void* dst, std::size_t dst_size) {
    return static_cast<std::uint32_t>((address(dst) & 15u) / dst_size);
}

LIBDDP_EVERYWHERE std::uint64_t chunks_of(const void* dst, std::size_t dst_size,
                                          std::uint64_t count, std::uint32_t elements) {
    return count == 0 ? 0 : (lead_of(dst, dst_size) + count + elements - 1) / elements;
}

// The last row from low to high that begins at this chunk or before.
template <class AnyTable>
LIBDDP_EVERYWHERE int find_row(const AnyTable& table, std::uint64_t chunk, int low, int high) {
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (table.row[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// The alignment of N elements that are loaded or stored together.
template <class T, std::uint32_t N>
inline constexpr std::uint64_t kTogetherAligned = sizeof(T) * N < 16 ? sizeof(T) * N : 16;

template <class T, std::uint32_t N>
LIBDDP_EVERYWHERE bool is_aligned(const T* at) {
    return address(at) % kTogetherAligned<T, N> == 0;
}

#if defined(__CUDA_ARCH__)
// The largest word that such an address allows.
template <std::size_t kBytes>
struct WordOf {
    using Type = uint4;
};
template <>
struct WordOf<8> {
    using Type = uint2;
};
template <>
struct WordOf<4> {
    using Type = std::uint32_t;
};
#endif

// N elements at an address that is aligned for them, in accesses of as much as 16 bytes.
template <class T, std::uint32_t N>
LIBDDP_EVERYWHERE void load_aligned(T (&values)[N], const T* from) {
    static_assert(sizeof values % 16 == 0 || sizeof values == 8 || sizeof values == 4);
#if defined(__CUDA_ARCH__)
    using Word = typename WordOf<sizeof values>::Type;
    Word words[sizeof values / sizeof(Word)];
#pragma unroll
    for (std::size_t i = 0; i < sizeof values / sizeof(Word); ++i)
        words[i] = reinterpret_cast<const Word*>(from)[i];
    memcpy(values, words, sizeof values);
#else
    memcpy(values, from, sizeof values);
#endif
}
template <class T, std::uint32_t N>
LIBDDP_EVERYWHERE void store_aligned(T* to, const T (&values)[N]) {
    static_assert(sizeof values % 16 == 0 || sizeof values == 8 || sizeof values == 4);
#if defined(__CUDA_ARCH__)
    using Word = typename WordOf<sizeof values>::Type;
    Word words[sizeof values / sizeof(Word)];
    memcpy(words, values, sizeof values);
#pragma unroll
    for (std::size_t i = 0; i < sizeof values / sizeof(Word); ++i)
        reinterpret_cast<Word*>(to)[i] = words[i];
#else
    memcpy(to, values, sizeof values);
#endif
}

#if defined(__CUDA_ARCH__)
#define LIBDDP_UNROLL _Pragma("unroll")
#else
#define LIBDDP_UNROLL
#endif

// The first n of N elements, the others being zero, and together where they can be.
template <class T, std::uint32_t N>
LIBDDP_EVERYWHERE void load_some(T (&values)[N], const T* from, std::uint32_t n) {
    if (n == N && is_aligned<T, N>(from)) return load_aligned(values, from);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < N; ++i) values[i] = i < n ? from[i] : T{};
}
template <class T, std::uint32_t N>
LIBDDP_EVERYWHERE void store_some(T* to, const T (&values)[N], std::uint32_t n) {
    if (n == N && is_aligned<T, N>(to)) return store_aligned(to, values);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < N; ++i)
        if (i < n) to[i] = values[i];
}

// One chunk on its way through a thread's registers.
template <class From, class To>
class Chunk {
    using Source = typename From::Stored;
    using Target = typename To::Stored;
    static constexpr std::uint32_t kElements = kChunkElements<To>;

public:
    LIBDDP_EVERYWHERE void load(const Row& row, std::uint64_t chunk) {
        const std::uint32_t lead = lead_of(row.dst, sizeof(Target));
        // The segment's own count of its chunks; in elements, counted from the beginning of its
        // first chunk.
        const std::uint64_t at = (chunk - row.first_chunk) * kElements;
        const std::uint64_t end = lead + row.count;
        begin_ = at < lead ? static_cast<std::uint32_t>(lead - at) : 0;
        end_ = end - at < kElements ? static_cast<std::uint32_t>(end - at) : kElements;
        // Unsigned arithmetic: may lie before the segment, where nothing is touched.
        const std::uint64_t shift = at - lead;
        target_ = reinterpret_cast<Target*>(address(row.dst) + shift * sizeof(Target));
        const auto* source =
            reinterpret_cast<const Source*>(address(row.src) + shift * sizeof(Source));
        if (row.src == nullptr) {
            LIBDDP_UNROLL
            for (std::uint32_t i = 0; i < kElements; ++i) values_[i] = Source{};
        } else if (whole() && is_aligned<Source, kElements>(source)) {
            load_aligned(values_, source);
        } else {
            LIBDDP_UNROLL
            for (std::uint32_t i = 0; i < kElements; ++i)
                values_[i] = has(i) ? source[i] : Source{};
        }
    }

    template <bool kScale>
    LIBDDP_EVERYWHERE void store(const Factor& factor) const {
        Target results[kElements];
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kElements; ++i) {
            auto value = From::load(values_[i]);
            if constexpr (kScale) value = scaled(value, factor);
            results[i] = To::store(value);
        }
        if (whole()) return store_aligned(target_, results);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kElements; ++i)
            if (has(i)) target_[i] = results[i];
    }

private:
    LIBDDP_EVERYWHERE bool has(std::uint32_t i) const { return i >= begin_ && i < end_; }
    LIBDDP_EVERYWHERE bool whole() const { return begin_ == 0 && end_ == kElements; }

    Target* target_;
    std::uint32_t begin_, end_;  // which of the elements there are
    Source values_[kElements];
};

// The work of one thread of the kernel.
template <class From, class To, bool kScale>
LIBDDP_EVERYWHERE void transfer_thread(const Table& table, std::uint64_t block,
                                       std::uint32_t thread) {
    const std::uint64_t first = block * kChunksPerBlock;
    const std::uint64_t after =
        first + kChunksPerBlock < table.chunks ? first + kChunksPerBlock : table.chunks;
    // The same in all threads of the block, and seldom many rows.
    const int low = find_row(table, first, 0, table.rows - 1);
    const int high = find_row(table, after - 1, low, table.rows - 1);
    Chunk<From, To> chunks[kChunksPerThread];
    LIBDDP_UNROLL
    for (int i = 0; i < kChunksPerThread; ++i) {
        const std::uint64_t chunk = first + static_cast<std::uint64_t>(i) * kThreads + thread;
        if (chunk < after) chunks[i].load(table.row[find_row(table, chunk, low, high)], chunk);
    }
    LIBDDP_UNROLL
    for (int i = 0; i < kChunksPerThread; ++i) {
        const std::uint64_t chunk = first + static_cast<std::uint64_t>(i) * kThreads + thread;
        if (chunk < after) chunks[i].template store<kScale>(table.factor);
    }
}

// From lists of segments to the parameters of kernels. Plain C++.

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

// Calls use(table) for tables that hold all segments. elements: of a whole chunk. parts: numbers of
// which an element is made.
template <class Use>
void each_table(const ddp_segment* segments, std::size_t count, std::size_t dst_size,
                std::uint32_t elements, std::size_t parts, const Factor& factor, Use use) {
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

// Calls use(From(), To(), scales) with the formats that a transfer needs, scales: a compile-time
// bool. Throws UNSUPPORTED.
template <class Use>
void with_formats(ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale, Use use) {
    const auto refuse = [&] {
        fail(DDP_ERROR_UNSUPPORTED, "conversion from ", dtype_name(src_dtype), " to ",
             dtype_name(dst_dtype), " is not supported");
    };
    if (dtype_size(src_dtype) == 0 || dtype_size(dst_dtype) == 0) refuse();
    if (src_dtype != dst_dtype && (!is_floating(src_dtype) || !is_floating(dst_dtype) ||
                                   is_complex(src_dtype) != is_complex(dst_dtype)))
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
            return with_floating(from, [&](auto source) {
                with_floating(to, [&](auto target) { use(source, target, kScales); });
            });
    }
}

}  // namespace libddp::cuda
