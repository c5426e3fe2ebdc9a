// Hooks that send gradients in fewer bytes: each rank packs its own with a codec, all ranks
// exchange the packed bytes, and each adds up what came. No collective can add packed numbers, so a
// rank receives bytes from every other. It is the same on the CPU and on devices: who packs and
// unpacks is whose memory the bucket is.
#include <algorithm>
#include <string>
#include <vector>

#include "hooks/builtin.h"
#include "hooks/job.h"
#include "hooks/kept.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp {
namespace {

class GatherHook final : public Hook {
public:
    struct Setup {
        std::string name, options;
        std::int64_t min_elements = 0;  // smaller parameters are reduced as they are
        bool feedback = false;          // what packing loses is added to the next step's gradient
        ddp_codec codec{};
    };

    explicit GatherHook(Setup setup) : setup_(std::move(setup)), errors_(setup_.name) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void set_buckets(const Buckets&) override { jobs_.clear(); }
    std::string name() const override { return setup_.name; }
    std::string options() const override { return setup_.options; }
    void save(HookState& state) const override { errors_.save(state); }
    void load(const HookState& state) override { errors_.load_all(state, setup_.feedback); }

private:
    struct Job;

    bool packs(const BucketTensor& tensor) const;
    void lay_out(const Group& group, const ddp_bucket& bucket, Job& job);

    const Setup setup_;
    JobPool<Job> jobs_;
    ErrorFeedback errors_;  // jobs on their way point to it
};

}  // namespace

// The message of a bucket. Its memory is where the bucket is, and its work is in the order of the
// bucket's stream.
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
    if (!is_real(bucket.dtype) || !any) return AllreduceHook().reduce(group, bucket, tag);
    const std::shared_ptr<Job> job = jobs_.take(bucket.index);
    lay_out(*group.impl, bucket, *job);
    job->encode();
    WorkPtr last = group.impl->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, job->batch.gathered,
                                       job->batch.size, DDP_U8, DDP_SUM, 0, bucket.device},
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
            // An absent gradient sends nothing of what was left out of earlier ones: perhaps nobody
            // takes the result.
            const bool feeds_back = setup_.feedback && !tensor.absent;
            job.parts.push_back(
                {tensor.gradient, feeds_back ? errors_.of(bucket, tensor) : nullptr, count, 0});
        } else {
            job.plain.add(tensor.gradient, count * dtype_size(bucket.dtype));
        }
    }
    std::size_t size = align_packed(job.parts.size());
    for (auto& part : job.parts) {
        part.packed = size;
        size += align_packed(packed_size(setup_.codec, bucket.dtype, part.count));
    }
    job.batch = {setup_.codec,
                 job.parts.data(),
                 job.parts.size(),
                 bucket.dtype,
                 group.rank(),
                 group.world(),
                 0,
                 nullptr,
                 size,
                 nullptr,
                 nullptr,
                 nullptr,
                 0,
                 0,
                 0};
    job.batch.gathered =
        job.gathered.require(size * static_cast<std::size_t>(group.world()), bucket.stream);
    job.batch.scratch = job.scratch.require(job.encode_scratch(), bucket.stream);
}

// Quantization, 1-bit and top-k: hooks that gather, each with its codec.

namespace {

GatherHook::Setup setup_of(OptionReader& options, const char* name, std::int64_t min_elements) {
    options.integer("min_elements", min_elements, 0);
    return {name, str("min_elements=", min_elements), min_elements, false, {}};
}

}  // namespace

HookPtr make_gathered_quantize(OptionReader& options, bool in_blocks) {
    std::int64_t block = 512;
    auto setup = setup_of(options, in_blocks ? "quantize_per_channel" : "quantize_per_tensor", 0);
    if (in_blocks) {
        options.integer("block", block, 1);
        setup.options += str(",block=", block);
    }
    setup.codec = {DDP_CODEC_QUANTIZE, 0, in_blocks ? static_cast<std::size_t>(block) : 0, 0};
    return std::make_shared<GatherHook>(std::move(setup));
}

HookPtr make_onebit(OptionReader& options) {
    std::int64_t block = 512;
    auto setup = setup_of(options, "onebit", 1024);
    options.integer("block", block, 0);
    if (block % 8 != 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("block"), " is ", block,
                  "; it must be a multiple of 8, or 0 for all of a parameter");
    setup.options += str(",block=", block);
    setup.feedback = true;
    setup.codec = {DDP_CODEC_ONEBIT, 0, static_cast<std::size_t>(block), 0};
    return std::make_shared<GatherHook>(std::move(setup));
}

HookPtr make_topk(OptionReader& options) {
    double ratio = 0.01;
    auto setup = setup_of(options, "topk", 1024);
    options.real("ratio", ratio, 0);
    if (!(ratio > 0 && ratio <= 1))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("ratio"), " is ", ratio,
                  "; it must be above 0 and at most 1: the share of each parameter's elements that "
                  "is sent");
    setup.options += str(",ratio=", exact(ratio));
    setup.feedback = true;
    setup.codec = {DDP_CODEC_TOPK, 0, 0, ratio};
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace libddp
