#include "traced.h"

#include <algorithm>
#include <thread>

#include "measure.h"

namespace bench {
namespace {

constexpr int kSteps = 3;
constexpr double kPatienceMs = 1;
// The moments of a bucket.
constexpr std::size_t kBegin = 0, kEnd = 1, kFinal = 2, kMoments = 3;

}  // namespace

Traced::Traced(SharedGradients& gradients, Moments& moments, const Options& options, void* probe)
    : gradients_(gradients), moments_(moments), options_(options), probe_(probe) {
    Result result;
    result.check(ddp_set_comm_hook(gradients_.context(), &reduce, this, nullptr, result));
}

Traced::~Traced() {
    ddp_set_comm_hook(gradients_.context(), nullptr, nullptr, nullptr, nullptr);
}

ddp_status Traced::reduce(void* self, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                          ddp_error** error) {
    auto* traced = static_cast<Traced*>(self);
    Bucket& known = traced->buckets_[static_cast<std::size_t>(ddp_bucket_index(bucket))];
    known.stream = ddp_bucket_stream(bucket);
    traced->moments_.mark(known.moments + kBegin, known.stream);
    ddp_work* sum = nullptr;
    const ddp_status status =
        ddp_allreduce(group, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                      ddp_bucket_dtype(bucket), ddp_bucket_op(bucket), &sum, error);
    if (status != DDP_OK) return status;
    const Work owned(sum);
    return ddp_work_then(sum, &reduced, &known, nullptr, DDP_WORK_ANY_THREAD, work, error);
}

ddp_status Traced::reduced(void* bucket, ddp_work**, ddp_error**) {
    auto* known = static_cast<Bucket*>(bucket);
    known->owner->moments_.mark(known->moments + kEnd, known->stream);
    known->enqueued_at = known->owner->moments_.now();
    known->enqueued.store(true, std::memory_order_release);
    return DDP_OK;
}

void Traced::run(const Backward& backward) {
    for (int i = 0; i < kSteps; ++i) step(backward);
}

void Traced::step(const Backward& backward) {
    gradients_.begin_step();
    follow_plan();
    void* stream = gradients_.stream();
    const std::size_t last = gradients_.all().size() - 1;
    moments_.mark(begin_of(last), stream);
    backward(gradients_.all(), [&](std::size_t i) {
        moments_.mark(end_of(i), stream);
        if (stream) written(i);
        gradients_.ready(i);
        if (i > 0) moments_.mark(begin_of(i - 1), stream);
    });
    gradients_.finalize_async();
    const double asked = moments_.now();
    for (const Bucket& bucket : buckets_) {
        gradients_.wait(bucket.params.front(), probe_);
        moments_.mark(bucket.moments + kFinal, probe_);
    }
    gradients_.finalize();
    collect(asked);
    ++steps_;
}

// Before the last gradient of a bucket is announced, which launches it.
void Traced::written(std::size_t param) {
    const std::size_t b = bucket_of_[param];
    if (--buckets_[b].unwritten > 0 || b < options_.groups) return;
    Bucket& before = buckets_[b - options_.groups];
    const double end = now_ms() + kPatienceMs;
    while (!before.enqueued.load(std::memory_order_acquire) && now_ms() < end)
        std::this_thread::yield();
    before.late = !before.enqueued.load(std::memory_order_acquire);
}

// Buckets may have been rebuilt.
void Traced::follow_plan() {
    const std::size_t params = gradients_.all().size();
    buckets_ = std::vector<Bucket>(
        static_cast<std::size_t>(ddp_context_bucket_count(gradients_.context())));
    bucket_of_.resize(params);
    for (std::size_t i = 0; i < params; ++i) {
        const std::int32_t bucket =
            ddp_context_param_bucket(gradients_.context(), static_cast<ddp_param>(i));
        bucket_of_[i] = static_cast<std::size_t>(bucket);
        buckets_[bucket_of_[i]].params.push_back(i);
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
        buckets_[b].owner = this;
        buckets_[b].moments = 2 * params + kMoments * b;
        buckets_[b].unwritten = buckets_[b].params.size();
    }
    moments_.reset(2 * params + kMoments * buckets_.size());
}

// Nothing was unpacked before it was asked for, nor before everything was written.
void Traced::collect(double asked) {
    const std::string step = "step " + std::to_string(steps_) + ", ";
    double unpacked = asked;
    for (std::size_t i = 0; i < gradients_.all().size(); ++i) {
        trace_.add(Trace::Track::backward, step + gradients_.name(i), moments_.at(begin_of(i)),
                   moments_.at(end_of(i)));
        unpacked = std::max(unpacked, moments_.at(end_of(i)));
    }
    // since when nothing before is on its way, for each of the groups
    std::vector<double> free(options_.groups, 0);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
        const Bucket& bucket = buckets_[b];
        const std::size_t lane = b % free.size();
        double ready = 0;
        for (const std::size_t i : bucket.params) ready = std::max(ready, moments_.at(end_of(i)));
        // A bucket that waits for one before it is packed meanwhile, which nobody sees.
        ready = std::max(ready, free[lane]);
        const double begin = std::max(moments_.at(bucket.moments + kBegin), free[lane]);
        const double marked = std::max(begin, moments_.at(bucket.moments + kEnd));
        const double end = bucket.late ? std::clamp(bucket.enqueued_at, begin, marked) : marked;
        const double final = moments_.at(bucket.moments + kFinal);
        const std::string name = step + "bucket " + std::to_string(b);
        trace_.add(Trace::Track::pack, name, ready, begin, static_cast<int>(lane));
        trace_.add(Trace::Track::communicate, name, begin, end, static_cast<int>(lane));
        trace_.add(Trace::Track::unpack, name, std::max(end, unpacked), final);
        free[lane] = end;
        unpacked = final;
    }
}

void Traced::report(Row& row, int rank) const {
    row["comm_ms"] = trace_.length(Trace::Track::communicate) / steps_;
    row["overlap"] = trace_.overlap(Trace::Track::communicate, Trace::Track::backward);
    if (rank == 0) trace_.write(options_.trace);
}

}  // namespace bench
