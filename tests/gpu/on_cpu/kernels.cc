// The kernels of the module, block after block and thread after thread, in the order of a stream.
#include "kernels/cuda/kernels.h"

#include <cstring>

#include "gpu/on_cpu/block_threads.h"
#include "gpu/on_cpu/stream.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/reduction.h"
#include "kernels/cuda/tables.h"
#include "kernels/cuda/updates.h"

namespace libddp::cuda {

void preload_transfer() {}
void preload_reduce() {}
void preload_norms() {}
void preload_updates() {}

void transfer(const ddp_segment* segments, std::size_t count, ddp_dtype src_dtype,
              ddp_dtype dst_dtype, double scale, cudaStream_t stream) {
    with_formats(src_dtype, dst_dtype, scale, [&](auto from, auto to, auto scales) {
        using From = decltype(from);
        using To = decltype(to);
        each_table(segments, count, sizeof(typename To::Stored), kChunkElements<To>,
                   is_complex(src_dtype) ? 2 : 1, factor_of(scale, src_dtype),
                   [&](const Table& table) {
                       on_cpu::stream_of(stream).enqueue([table] {
                           for (std::uint64_t block = 0; block < blocks_of(table); ++block)
                               for (std::uint32_t thread = 0; thread < kThreads; ++thread)
                                   transfer_thread<From, To, decltype(scales)::value>(table, block,
                                                                                      thread);
                       });
                   });
    });
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale, cudaStream_t stream) {
    const ReduceTable table = reduce_table(out, inputs, input_count, count, dtype, op, scale);
    with_reduce_format(dtype, op, [&](auto format) {
        using Format = decltype(format);
        on_cpu::stream_of(stream).enqueue([table] {
            for (std::uint64_t thread = 0; thread <= table.count / kReduceElements<Format>;
                 ++thread)
                reduce_thread<Format>(table, thread);
        });
    });
}

void low_rank(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count, ddp_dtype dtype,
              cudaStream_t stream) {
    each_low_rank_launch(
        op, items, count, dtype,
        [&](auto product, auto format, auto tile, const LowRankTable& table) {
            using Product = decltype(product);
            using Format = decltype(format);
            constexpr std::uint32_t kTile = decltype(tile)::value;
            on_cpu::stream_of(stream).enqueue([table] {
                typename Product::template Shared<typename Format::Compute, kTile> shared;
                on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                    for (std::uint64_t block = 0; block < table.blocks; ++block)
                        run_block<Product, Format, kTile>(threads, shared, table, block);
                });
            });
        });
}

void thin(ddp_thin_op op, const ddp_thin* items, std::size_t count, ddp_dtype dtype,
          const ddp_thin_rules& rules, cudaStream_t stream) {
    each_thin_table(items, count, rules, [&](const ThinTable& table) {
        on_cpu::stream_of(stream).enqueue([op, dtype, table] {
            thin::Shared shared;
            on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                for (int i = 0; i < table.rows; ++i)
                    dtype == DDP_F64
                        ? run_thin<F64>(threads, shared, op, table.row[i], table.rules)
                        : run_thin<F32>(threads, shared, op, table.row[i], table.rules);
            });
        });
    });
}

void leave_out(const ddp_doubt* items, std::size_t count, ddp_dtype dtype,
               const std::uint32_t* only_if, cudaStream_t stream) {
    each_doubt_table(items, count, only_if, [&](const DoubtTable& table) {
        with_real_format(dtype, [&](auto format) {
            on_cpu::stream_of(stream).enqueue([table] {
                thin::Shared shared;
                on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                    for (int i = 0; i < table.rows; ++i)
                        run_leave_out<decltype(format)>(threads, shared, table.row[i],
                                                        table.only_if);
                });
            });
        });
    });
}

void norm_terms(const ddp_norm_item* items, std::size_t count, ddp_dtype dtype, ddp_norm_kind kind,
                void* scratch, cudaStream_t stream) {
    with_norm_format(dtype, kind, [&](auto one, auto format) {
        using Kind = decltype(one);
        using Format = decltype(format);
        each_norm_table(items, count, dtype, kind, scratch, [&](const NormTable& table) {
            on_cpu::stream_of(stream).enqueue([table] {
                NormShared shared;
                on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                    for (std::uint64_t block = 0; block < blocks_of(table); ++block)
                        sum_norm_parts<Kind, Format>(threads, shared, table, block);
                    for (std::int32_t row = 0; row < table.rows; ++row)
                        sum_norm_row<Kind>(threads, shared, table, static_cast<std::uint32_t>(row));
                });
            });
        });
    });
}

void update(ddp_update_op op, const ddp_update* items, std::size_t count, ddp_dtype values,
            ddp_dtype gradients, cudaStream_t stream) {
    with_update(op, values, gradients, [&](auto method, auto format) {
        using Method = decltype(method);
        using Format = decltype(format);
        each_update_table(items, count, gradients, [&](const UpdateTable& table) {
            on_cpu::stream_of(stream).enqueue([table] {
                UpdateShared shared;
                on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                    for (std::uint64_t block = 0; block < table.chunks; ++block)
                        update_block<Method, Format>(threads, shared, table, block);
                });
            });
        });
    });
}

void spoil(void* memory, std::size_t bytes, const std::uint32_t* spoiled, cudaStream_t stream) {
    on_cpu::stream_of(stream).enqueue([=] {
        if (__atomic_load_n(spoiled, __ATOMIC_ACQUIRE) != 0) std::memset(memory, 0xff, bytes);
    });
}

namespace {

struct OnStream {
    template <class Kernel, class AnyTable>
    void start(const AnyTable& table) const {
        on_cpu::stream_of(stream).enqueue([table] {
            typename Kernel::Shared shared;
            on_cpu::play_block(1, [&](const on_cpu::BlockThreads& threads) {
                work_on_chunks<Kernel>(threads, shared, table, 0, 1);
            });
        });
    }
    void zero(void* memory, std::size_t bytes) const {
        on_cpu::stream_of(stream).enqueue([=] { std::memset(memory, 0, bytes); });
    }

    cudaStream_t stream;
};

}  // namespace

void encode(const ddp_codec_batch& batch, cudaStream_t stream) {
    encode_batch(batch, OnStream{stream});
}

void decode(const ddp_codec_batch& batch, double scale, cudaStream_t stream) {
    decode_batch(batch, scale, OnStream{stream});
}

void recode(const ddp_codec_batch& batch, double scale, cudaStream_t stream) {
    recode_batch(batch, scale, OnStream{stream});
}

}  // namespace libddp::cuda
