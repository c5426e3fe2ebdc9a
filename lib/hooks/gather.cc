// Hooks that send gradients in fewer bytes: each rank packs its own with a codec, all ranks exchange the packed bytes, and
// each adds up what came. No collective can add packed numbers, so a rank receives bytes from every other. It is the same on
// the CPU and on devices: who packs and unpacks is whose memory the bucket is.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "hooks/hook.h"
#include "hooks/job.h"
#include "hooks/kept.h"
#include "hooks/options.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t align_to_8(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

class GatherHook final : public Hook {
public:
    struct Setup {
        std::string name, options;
        std::int64_t min_elements = 0;  // smaller parameters are reduced as they are
        bool feedback = false;          // what packing loses is added to the next step's gradient
        ddp_codec codec{};
    };

    explicit GatherHook(Setup setup) : setup_(std::move(setup)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void set_buckets(const Buckets&) override { jobs_.clear(); }
    std::string name() const override { return setup_.name; }
    std::string options() const override { return setup_.options; }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    struct Job;

    bool packs(const BucketTensor& tensor) const;
    void lay_out(const Group& group, const ddp_bucket& bucket, Job& job);
    // The error feedback of a parameter: the part of its gradients that earlier steps did not send.
    std::byte* residual(const ddp_bucket& bucket, const BucketTensor& tensor);

    const Setup setup_;
    JobPool<Job> jobs_;
    // By parameter, so that another layout of the buckets changes nothing. Their memory stays where it is: jobs on their
    // way point to it.
    std::map<ddp_param, Kept> residuals_;
};

}  // namespace

// The message of a bucket. Its memory is where the bucket is, and its work is in the order of the bucket's stream.
struct GatherHook::Job {
    std::vector<ddp_codec_part> parts;  // parameters that are packed
    PlainPart plain;                    // and those that are not
    ddp_codec_batch batch{};
    ScratchMemory gathered, scratch;
    StreamPtr stream;  // null: on the CPU
    double scale = 1;

    void encode() { stream ? on_device::encode(*stream, batch) : cpu::encode(batch); }
    void decode() { stream ? on_device::decode(*stream, batch, scale) : cpu::decode(batch, scale); }
    std::size_t encode_scratch() const {
        return stream ? on_device::encode_scratch(*stream, batch) : cpu::encode_scratch(batch);
    }
};

bool GatherHook::packs(const BucketTensor& tensor) const {
    return tensor.count > 0 && tensor.count >= setup_.min_elements;
}

WorkPtr GatherHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    const bool any = std::any_of(bucket.tensors.begin(), bucket.tensors.end(),
                                 [this](const BucketTensor& tensor) { return packs(tensor); });
    if (!is_real(bucket.dtype) || !any) return group.impl->submit(allreduce_of(bucket), tag);
    const std::shared_ptr<Job> job = jobs_.take(bucket.index);
    lay_out(*group.impl, bucket, *job);
    job->encode();
    WorkPtr last = group.impl->submit(
        {DDP_COLLECTIVE_ALLGATHER, nullptr, job->batch.gathered, job->batch.size, DDP_U8, DDP_SUM, 0, bucket.device},
        tag.keeping(job, job->gathered.on_device()));
    if (const WorkPtr plain = job->plain.submit(*group.impl, bucket, job, tag)) last = plain;
    return last->then(
        [job](const OpTag&) -> WorkPtr {
            job->decode();
            job->plain.give_back();
            return nullptr;
        },
        true, tag);
}

void GatherHook::lay_out(const Group& group, const ddp_bucket& bucket, Job& job) {
    job.stream = bucket.stream;
    job.scale = bucket.op() == DDP_AVG ? 1.0 / group.world() : 1.0;
    job.parts.clear();
    job.plain.clear();
    for (const auto& tensor : bucket.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        if (packs(tensor)) {
            // An absent gradient sends nothing of what was left out of earlier ones: perhaps nobody takes the result.
            const bool feeds_back = setup_.feedback && !tensor.absent;
            job.parts.push_back({tensor.gradient, feeds_back ? residual(bucket, tensor) : nullptr, count, 0});
        } else {
            job.plain.add(tensor.gradient, count * dtype_size(bucket.dtype));
        }
    }
    std::size_t size = align_to_8(job.parts.size());
    for (auto& part : job.parts) {
        part.packed = size;
        size += align_to_8(packed_size(setup_.codec, bucket.dtype, part.count));
    }
    job.batch = {
        setup_.codec, job.parts.data(), job.parts.size(), bucket.dtype, group.rank(), group.world(), 0, nullptr,
        size,         nullptr};
    job.batch.gathered = job.gathered.require(size * static_cast<std::size_t>(group.world()), bucket.stream);
    job.batch.scratch = job.scratch.require(job.encode_scratch(), bucket.stream);
}

// Zeros at first. In another precision when the hook has been wrapped by one that casts.
std::byte* GatherHook::residual(const ddp_bucket& bucket, const BucketTensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.count);
    const ddp_dtype dtype = compute_dtype(bucket.dtype);
    Kept& kept = residuals_[tensor.param];
    if (kept.memory && kept.rows != count)
        fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state that was loaded has ", kept.rows,
             " elements for parameter ", tensor.param, ", whose gradient has ", count);
    if (!kept.memory || kept.dtype != dtype) {
        if (kept.memory)
            kept.convert_to(dtype);
        else
            kept = Kept::zeros(dtype, count, 1, bucket.home);
        if (bucket.stream) bucket.stream->wait(*bucket.home->record());  // the memory is of that stream
    }
    return kept.memory.get();
}

void GatherHook::save(HookState& state) const {
    for (const auto& [param, kept] : residuals_)
        state.arrays.push_back({param,
                                HookState::kError,
                                kept.dtype,
                                {static_cast<std::int64_t>(kept.rows)},
                                false,
                                kept.memory.get(),
                                kept.bytes(),
                                kept.home});
}

void GatherHook::load(const HookState& state) {
    std::map<ddp_param, Kept> loaded;
    for (const auto& array : state.arrays) {
        const bool known = setup_.feedback && array.key == HookState::kError && array.param >= 0;
        if (!known)
            fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state has an array '", array.key,
                 "', which this hook does not keep");
        if ((array.dtype != DDP_F32 && array.dtype != DDP_F64) || array.shape.size() != 1)
            fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state's array '", HookState::kError, "' of parameter ",
                 array.param, " is not a list of f32 or f64");
        loaded[array.param] = Kept::loaded(array, state.copies.get());
    }
    residuals_ = std::move(loaded);
}

// Quantization, 1-bit and top-k: hooks that gather, each with its codec.

namespace {

GatherHook::Setup setup_of(std::int64_t min_elements) {
    if (min_elements < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "min_elements is ", min_elements,
                  "; it must be at least 0: parameters with fewer elements are not compressed");
    GatherHook::Setup setup;
    setup.min_elements = min_elements;
    return setup;
}

HookPtr make(GatherHook::Setup setup) {
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace

ddp_quantize_options quantize_defaults() {
    return {sizeof(ddp_quantize_options), 0, 0};
}

HookPtr make_quantize(const ddp_quantize_options& options) {
    if (options.block < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "block is ", options.block,
                  "; it must be a number of elements, or 0 for all of a parameter");
    GatherHook::Setup setup = setup_of(options.min_elements);
    setup.name = options.block == 0 ? "quantize_per_tensor" : "quantize_per_channel";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.codec = {DDP_CODEC_QUANTIZE, 0, static_cast<std::size_t>(options.block), 0};
    return make(std::move(setup));
}

ddp_onebit_options onebit_defaults() {
    return {sizeof(ddp_onebit_options), 1024, 512};
}

HookPtr make_onebit(const ddp_onebit_options& options) {
    GatherHook::Setup setup = setup_of(options.min_elements);
    if (options.block < 0 || options.block % 8 != 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "block is ", options.block,
                  "; it must be a multiple of 8, or 0 for all of a parameter");
    setup.name = "onebit";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.feedback = true;
    setup.codec = {DDP_CODEC_ONEBIT, 0, static_cast<std::size_t>(options.block), 0};
    return make(std::move(setup));
}

ddp_topk_options topk_defaults() {
    return {sizeof(ddp_topk_options), 0.01, 1024};
}

HookPtr make_topk(const ddp_topk_options& options) {
    if (!(options.ratio > 0 && options.ratio <= 1))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "ratio is ", options.ratio,
                  "; it must be above 0 and at most 1: the share of each parameter's elements that is sent");
    GatherHook::Setup setup = setup_of(options.min_elements);
    setup.name = "topk";
    setup.options = str("ratio=", options.ratio, ",min_elements=", options.min_elements);
    setup.feedback = true;
    setup.codec = {DDP_CODEC_TOPK, 0, 0, options.ratio};
    return make(std::move(setup));
}

}  // namespace libddp
