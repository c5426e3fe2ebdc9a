// The kernels of the module, block after block and thread after thread, in the order of a stream.
#include "modules/cuda/kernels.h"

#include <cstring>

#include "gpu/on_cpu/stream.h"
#include "gpu/on_cpu/team.h"
#include "modules/cuda/codecs.h"
#include "modules/cuda/reduction.h"
#include "modules/cuda/tables.h"

namespace libddp::cuda {

void transfer(const ddp_segment* segments, std::size_t count, ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale,
              cudaStream_t stream) {
    with_formats(src_dtype, dst_dtype, scale, [&](auto from, auto to, auto scales) {
        using From = decltype(from);
        using To = decltype(to);
        each_table(segments, count, sizeof(typename To::Stored), kChunkElements<From, To>,
                   is_complex(src_dtype) ? 2 : 1, factor_of(scale, src_dtype), [&](const Table& table) {
                       on_cpu::stream_of(stream).enqueue([table] {
                           for (std::uint64_t block = 0; block < blocks_of(table); ++block)
                               for (std::uint32_t thread = 0; thread < kThreads; ++thread)
                                   transfer_thread<From, To, decltype(scales)::value>(table, block, thread);
                       });
                   });
    });
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count, ddp_dtype dtype,
            ddp_reduce_op op, double scale, cudaStream_t stream) {
    const ReduceTable table = reduce_table(out, inputs, input_count, count, dtype, op, scale);
    with_reduce_format(dtype, op, [&](auto format) {
        using Format = decltype(format);
        on_cpu::stream_of(stream).enqueue([table] {
            for (std::uint64_t thread = 0; thread <= table.count / kReduceElements<Format>; ++thread)
                reduce_thread<Format>(table, thread);
        });
    });
}

namespace {

struct OnStream {
    template <class Kernel>
    void start(const CodecTable& table) const {
        on_cpu::stream_of(stream).enqueue([table] {
            typename Kernel::Shared shared;
            on_cpu::run_team(1, [&](const on_cpu::Team& team) {
                for (std::uint64_t chunk = 0; chunk < table.chunks; ++chunk) Kernel::work(team, shared, table, chunk);
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

}  // namespace libddp::cuda
