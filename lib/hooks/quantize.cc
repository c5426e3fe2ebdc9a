// Gradients in 8 bits that ranks add up share by share.
#include <memory>
#include <string>
#include <vector>

#include "hooks/builtin.h"
#include "hooks/compressed_sum.h"
#include "hooks/job.h"
#include "hooks/kept.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "kernels/dtype.h"
#include "kernels/eight_bits.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp {
namespace {

constexpr const char* kName = "quantize";

class QuantizeHook final : public Hook {
public:
    struct Setup {
        std::string options;
        ddp_codec codec{};
        bool feedback = false;          // what rounding loses is added to the next step's gradient
        std::int64_t min_elements = 0;  // smaller parameters are reduced as they are
    };

    explicit QuantizeHook(Setup setup) : setup_(std::move(setup)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void set_buckets(const Buckets&) override { jobs_.clear(); }
    std::string name() const override { return kName; }
    std::string options() const override { return setup_.options; }
    // They say who keeps what a sum has lost.
    bool depends_on_buckets() const override { return setup_.feedback; }
    void forget_step(std::int64_t step) override { steps_.take_back(step); }
    std::int64_t steps() const override { return steps_.begun(); }
    void resume(std::int64_t steps) override { steps_.resume(steps); }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    struct Job;

    void lay_out(const ddp_bucket& bucket, Job& job);

    const Setup setup_;
    JobPool<Job> jobs_;
    StepCounter steps_;            // random numbers belong to one
    ErrorFeedback errors_{kName};  // jobs on their way point to it
};

}  // namespace

struct QuantizeHook::Job {
    std::vector<CompressedSum::Item> items;
    std::vector<OwnedRange> ranges;
    PlainPart plain;  // parameters that are not compressed
    CompressedSum sum;
};

WorkPtr QuantizeHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    steps_.note(bucket.step);
    const std::shared_ptr<Job> job = jobs_.take(bucket.index);
    if (is_real(bucket.dtype)) lay_out(bucket, *job);
    if (!is_real(bucket.dtype) || job->items.empty())
        return AllreduceHook().reduce(group, bucket, tag);
    const WorkPtr plain = job->plain.submit(*group.impl, bucket, job, tag);
    CompressedSum::Rules rules{setup_.codec, bucket.dtype, bucket.op(),
                               static_cast<std::uint64_t>(steps_.begun() - 1),
                               bucket.sections ? &job->ranges : nullptr};
    const WorkPtr last =
        job->sum.start(*group.impl, rules, job->items, bucket.stream, {job, &job->sum}, tag);
    if (!plain) return last;
    return last->then(
        [job](const OpTag&) -> WorkPtr {
            job->plain.give_back();
            return nullptr;
        },
        true, tag);
}

void QuantizeHook::lay_out(const ddp_bucket& bucket, Job& job) {
    job.items.clear();
    job.ranges.clear();
    job.plain.clear();
    std::size_t for_all = 0;  // the bucket begins with what every rank gets
    if (bucket.sections)
        for (const BucketSection& section : *bucket.sections) {
            if (!section.counts) for_all = section.begin + section.count;
            if (!section.counts) continue;
            std::size_t begin = section.begin;
            for (std::size_t r = 0; r < section.counts->size(); ++r) {
                const std::size_t end = begin + static_cast<std::size_t>((*section.counts)[r]);
                job.ranges.push_back({begin, end, static_cast<std::int32_t>(r)});
                begin = end;
            }
        }
    for (const BucketTensor& tensor : bucket.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        const std::size_t begin = bucket.first_element(tensor);
        if (tensor.count == 0) continue;
        if (tensor.count < setup_.min_elements || begin < for_all) {
            job.plain.add(tensor.gradient, count * dtype_size(bucket.dtype));
            continue;
        }
        // An absent gradient sends nothing of what was left out of earlier ones: perhaps nobody
        // takes the result.
        const bool feeds_back = setup_.feedback && !tensor.absent;
        job.items.push_back({tensor.gradient, feeds_back ? errors_.of(bucket, tensor) : nullptr,
                             count, static_cast<std::uint32_t>(tensor.param), begin});
    }
}

void QuantizeHook::save(HookState& state) const {
    steps_.save(state);
    errors_.save(state);
}

void QuantizeHook::load(const HookState& state) {
    const std::int64_t steps = StepCounter::read(state, kName);
    errors_.load_all(state, setup_.feedback);
    steps_.resume(steps);
}

HookPtr make_quantize(OptionReader& options) {
    QuantizeHook::Setup setup;
    const std::string type = options.take("type").value_or("int8");
    setup.codec.kind = type == "int8"   ? DDP_CODEC_INT8
                       : type == "e4m3" ? DDP_CODEC_E4M3
                       : type == "e5m2" ? DDP_CODEC_E5M2
                                        : 0;
    if (setup.codec.kind == 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("type"), " is '", type,
                  "'; it must be int8, e4m3 or e5m2");
    const std::string rounding = options.take("rounding").value_or("nearest");
    if (rounding != "nearest" && rounding != "stochastic")
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("rounding"), " is '", rounding,
                  "'; it must be nearest or stochastic");
    setup.codec.stochastic = rounding == "stochastic";
    setup.codec.block = 256;
    options.integer("block", setup.codec.block, 32, eight_bits::kMostBlock);
    options.flag("error_feedback", setup.feedback);
    options.integer("min_elements", setup.min_elements, 0);
    setup.options =
        str("type=", type, ",block=", setup.codec.block, ",rounding=", rounding,
            ",error_feedback=", setup.feedback ? 1 : 0, ",min_elements=", setup.min_elements);
    return std::make_shared<QuantizeHook>(std::move(setup));
}

}  // namespace libddp
