#include "kernels/on_device.h"

#include <atomic>

#include "kernels/norm_order.h"
#include "util/error.h"

namespace libddp::on_device {
namespace {

// There is one kind of device besides the CPU.
const ddp_device_kernels& kernels_of(ddp_device_kind kind) {
    // A pointer releases the kernels that the module has made.
    static std::atomic<const ddp_device_kernels*> known{nullptr};
    const ddp_device_kernels* kernels = known.load(std::memory_order_acquire);
    if (!kernels) {
        kernels = reinterpret_cast<ddp_kernels_entry_fn*>(
            device_module_entry(kind, "ddp_kernels_entry"))();
        if (kernels->struct_size != sizeof *kernels)
            fail(DDP_ERROR_UNSUPPORTED, "the module of ", device_name({kind, 0}),
                 " has the kernels of another build");
        known.store(kernels, std::memory_order_release);
    }
    return *kernels;
}

template <class Kernel, class... Arguments>
void launch_on(const ddp_device& device, void* stream, const char* what,
               Kernel ddp_device_kernels::*kernel, Arguments... arguments) {
    call_device(device, what, kernels_of(device.kind).*kernel, device.index, stream, arguments...);
}

template <class Kernel, class... Arguments>
void launch(const DeviceStream& stream, const char* what, Kernel ddp_device_kernels::*kernel,
            Arguments... arguments) {
    launch_on(stream.device(), stream.handle(), what, kernel, arguments...);
}

}  // namespace

StreamPtr make_stream(const ddp_device& device) {
    require_device(device, "a stream");
    call_device(device, "loading kernels", kernels_of(device.kind).prepare, device.index);
    return DeviceStream::create(device);
}

void transfer(const DeviceStream& stream, const std::vector<ddp_segment>& segments,
              ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale) {
    if (segments.empty()) return;
    launch(stream, "moving gradients", &ddp_device_kernels::transfer, segments.data(),
           segments.size(), src_dtype, dst_dtype, scale);
}

void copy(const ddp_device& device, void* stream, void* dst, const void* src, std::size_t count,
          ddp_dtype dtype, bool add) {
    const char* const what = "copying a gradient";
    const ddp_segment segment{dst, src, count};
    const void* const terms[] = {dst, src};
    if (add)
        launch_on(device, stream, what, &ddp_device_kernels::reduce, dst, terms, std::size_t{2},
                  count, dtype, DDP_SUM, 1.0);
    else
        launch_on(device, stream, what, &ddp_device_kernels::transfer, &segment, std::size_t{1},
                  dtype, dtype, 1.0);
}

void reduce(const DeviceStream& stream, void* out, const void* const* inputs,
            std::size_t input_count, std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
            double scale) {
    launch(stream, "reducing", &ddp_device_kernels::reduce, out, inputs, input_count, count, dtype,
           op, scale);
}

std::size_t encode_scratch(const DeviceStream& stream, const ddp_codec_batch& batch) {
    return kernels_of(stream.device().kind).encode_scratch(&batch);
}

void encode(const DeviceStream& stream, const ddp_codec_batch& batch) {
    launch(stream, "packing gradients", &ddp_device_kernels::encode, &batch);
}

void decode(const DeviceStream& stream, const ddp_codec_batch& batch, double scale) {
    launch(stream, "unpacking gradients", &ddp_device_kernels::decode, &batch, scale);
}

void recode(const DeviceStream& stream, const ddp_codec_batch& batch, double scale) {
    launch(stream, "adding up packed gradients", &ddp_device_kernels::recode, &batch, scale);
}

void low_rank(const DeviceStream& stream, ddp_low_rank_op op,
              const std::vector<ddp_low_rank>& items, ddp_dtype dtype) {
    if (!items.empty())
        launch(stream, "compressing gradients", &ddp_device_kernels::low_rank, op, items.data(),
               items.size(), dtype);
}

void thin(const DeviceStream& stream, ddp_thin_op op, const std::vector<ddp_thin>& items,
          ddp_dtype dtype, const ddp_thin_rules& rules) {
    if (!items.empty())
        launch(stream, "working on P and Q", &ddp_device_kernels::thin, op, items.data(),
               items.size(), dtype, &rules);
}

void leave_out(const DeviceStream& stream, const std::vector<ddp_doubt>& items, ddp_dtype dtype,
               const std::uint32_t* only_if) {
    if (!items.empty())
        launch(stream, "looking for gradients that are not finite", &ddp_device_kernels::leave_out,
               items.data(), items.size(), dtype, only_if);
}

void spoil(const DeviceStream& stream, void* memory, std::size_t bytes,
           const std::uint32_t* spoiled) {
    if (bytes > 0)
        launch(stream, "marking a result as wrong", &ddp_device_kernels::spoil, memory, bytes,
               spoiled);
}

std::size_t norm_scratch(const std::vector<ddp_norm_item>& items, ddp_dtype dtype,
                         ddp_norm_kind kind) {
    std::size_t parts = 0;
    for (const ddp_norm_item& item : items)
        parts +=
            norm_order::parts(norm_order::numbers(item.count, dtype, kind == DDP_NORM_SQUARES));
    return parts * sizeof(double);
}

void norm_terms(const DeviceStream& stream, const std::vector<ddp_norm_item>& items,
                ddp_dtype dtype, ddp_norm_kind kind, void* scratch) {
    if (!items.empty())
        launch(stream, "counting a norm", &ddp_device_kernels::norm_terms, items.data(),
               items.size(), dtype, kind, scratch);
}

void update(const DeviceStream& stream, ddp_update_op op, const std::vector<ddp_update>& items,
            ddp_dtype values, ddp_dtype gradients) {
    if (!items.empty())
        launch(stream, "stepping an optimizer", &ddp_device_kernels::update, op, items.data(),
               items.size(), values, gradients);
}

}  // namespace libddp::on_device
