// The kernels as the table that libddp finds in libddp-cuda.so.
#include <set>

#include "device/cuda/check.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/kernels.h"
#include "util/mutex.h"

namespace libddp::cuda {
namespace {

ddp_status prepare(std::int32_t device, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        static Mutex& mutex = *new Mutex;
        static auto& done = *new std::set<int>;
        const Lock lock(mutex);
        if (done.count(device)) return;
        preload_transfer();
        preload_reduce();
        preload_norms();
        preload_updates();
        done.insert(device);
    });
}

ddp_status transfer_on(std::int32_t device, void* stream, const ddp_segment* segments,
                       std::size_t count, ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale,
                       ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        transfer(segments, count, src_dtype, dst_dtype, scale, stream_of(stream));
    });
}

ddp_status reduce_on(std::int32_t device, void* stream, void* out, const void* const* inputs,
                     std::size_t input_count, std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
                     double scale, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        reduce(out, inputs, input_count, count, dtype, op, scale, stream_of(stream));
    });
}

ddp_status low_rank_on(std::int32_t device, void* stream, ddp_low_rank_op op,
                       const ddp_low_rank* items, std::size_t count, ddp_dtype dtype,
                       ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { low_rank(op, items, count, dtype, stream_of(stream)); });
}

ddp_status thin_on(std::int32_t device, void* stream, ddp_thin_op op, const ddp_thin* items,
                   std::size_t count, ddp_dtype dtype, const ddp_thin_rules* rules,
                   ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { thin(op, items, count, dtype, *rules, stream_of(stream)); });
}

ddp_status leave_out_on(std::int32_t device, void* stream, const ddp_doubt* items,
                        std::size_t count, ddp_dtype dtype, const std::uint32_t* only_if,
                        ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { leave_out(items, count, dtype, only_if, stream_of(stream)); });
}

ddp_status spoil_on(std::int32_t device, void* stream, void* memory, std::size_t bytes,
                    const std::uint32_t* spoiled, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { spoil(memory, bytes, spoiled, stream_of(stream)); });
}

ddp_status norm_terms_on(std::int32_t device, void* stream, const ddp_norm_item* items,
                         std::size_t count, ddp_dtype dtype, ddp_norm_kind kind, void* scratch,
                         ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { norm_terms(items, count, dtype, kind, scratch, stream_of(stream)); });
}

ddp_status update_on(std::int32_t device, void* stream, ddp_update_op op, const ddp_update* items,
                     std::size_t count, ddp_dtype values, ddp_dtype gradients,
                     ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { update(op, items, count, values, gradients, stream_of(stream)); });
}

std::size_t encode_scratch(const ddp_codec_batch* batch) {
    return codec_scratch(*batch);
}

ddp_status encode_on(std::int32_t device, void* stream, const ddp_codec_batch* batch,
                     ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { encode(*batch, stream_of(stream)); });
}

ddp_status decode_on(std::int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                     ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { decode(*batch, scale, stream_of(stream)); });
}

ddp_status recode_on(std::int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                     ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { recode(*batch, scale, stream_of(stream)); });
}

constexpr ddp_device_kernels kKernels = {
    sizeof(ddp_device_kernels),
    prepare,
    transfer_on,
    reduce_on,
    encode_scratch,
    encode_on,
    decode_on,
    recode_on,
    low_rank_on,
    thin_on,
    leave_out_on,
    spoil_on,
    norm_terms_on,
    update_on,
};

}  // namespace
}  // namespace libddp::cuda

extern "C" DDP_API const ddp_device_kernels* ddp_kernels_entry(void) {
    return &libddp::cuda::kKernels;
}
