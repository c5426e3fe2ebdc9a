// Coarse-grained sparse communication, as GradientFlow has it (Sun et al., arXiv 1902.06855): of the
// chunks of a bucket all ranks send the same ones, those that are largest over all ranks. So an
// allreduce adds them up, and a rank sends as little in a large world as in a small one.
//
// Two allreduces: of the chunks' norms, from which each rank chooses, and of the chosen chunks.
// Norms of an earlier step would hide the first one. But a chunk that was just sent has nothing left,
// so its last norm says little, and with norms of this step there is nothing to keep for them.
//
// Momentum correction is that of Deep Gradient Compression (Lin et al., arXiv 1712.01887).
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "hooks/builtin.h"
#include "hooks/job.h"
#include "hooks/kept.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "kernels/arithmetic.h"
#include "kernels/codec.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp {
namespace {

constexpr const char* kChunks = "chunks";

class ChunksHook final : public Hook {
public:
    struct Setup {
        std::size_t chunk = 512;     // elements
        double ratio = 0.1;          // the share of a bucket's elements that is sent
        double momentum = 0;         // of the model's optimizer, which then has none
        std::int64_t warmup = 1000;  // synced steps until the share is `ratio`
    };

    explicit ChunksHook(const Setup& setup) : setup_(setup) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void set_buckets(const Buckets&) override { jobs_.clear(); }
    std::string name() const override { return kChunks; }
    std::string options() const override {
        return str("chunk=", setup_.chunk, ",ratio=", exact(setup_.ratio),
                   ",momentum=", exact(setup_.momentum), ",warmup=", setup_.warmup);
    }
    bool depends_on_buckets() const override { return true; }
    void forget_step(std::int64_t step) override { steps_.take_back(step); }
    std::int64_t steps() const override { return steps_.begun(); }
    void resume(std::int64_t steps) override { steps_.resume(steps); }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    struct Job;

    double share() const;
    void lay_out(const ddp_bucket& bucket, Job& job);

    const Setup setup_;
    JobPool<Job> jobs_;
    StepCounter steps_;
    // what this rank has not sent; jobs on their way point to both
    ErrorFeedback errors_{kChunks}, velocities_{kChunks, HookState::kVelocity};
};

}  // namespace

// A bucket on its way. Nothing that is kept changes before all is there.
struct ChunksHook::Job {
    // A parameter. The error and the velocity are as long as the gradient.
    struct Layer {
        std::byte* gradient;
        std::byte* error;
        std::byte* velocity;  // null without momentum
        std::size_t count;
        std::size_t first;  // the number of its first chunk
        bool absent;        // this rank has no gradient: what is kept waits
    };

    ddp_dtype dtype = DDP_F32;
    std::size_t chunk = 1;
    double momentum = 0, share = 1;
    std::vector<Layer> layers;
    // For each chunk: its elements, this rank's norm and then the sum over ranks, the mean magnitude
    // of an element, and whether it is sent.
    std::vector<std::size_t> lengths;
    std::vector<double> norms, magnitudes;
    std::vector<char> sent;
    std::vector<std::size_t> order;  // scratch: chunks, the most important first
    std::size_t sent_elements = 0;
    ScratchMemory packed, numbers;

    ddp_dtype compute() const { return compute_dtype(dtype); }
    std::size_t chunks_of(const Layer& layer) const { return (layer.count + chunk - 1) / chunk; }

    void measure() {
        as_real([this](auto real) { measure_as<decltype(real)>(); });
    }
    void choose();
    void pack() {
        as_real([this](auto real) { pack_as<decltype(real)>(); });
    }
    void finish() {
        as_real([this](auto real) { finish_as<decltype(real)>(); });
    }

private:
    // A chunk of this rank's: the velocity with this step's gradient, and what could be sent.
    template <class Real>
    struct Sum {
        Real *velocity, *total;
        std::size_t count;
    };

    template <class Function>
    void as_real(Function function) {
        const DefaultArithmeticScope arithmetic;
        compute() == DDP_F64 ? function(double{}) : function(float{});
    }
    template <class Real>
    Sum<Real> sum_of(const Layer& layer, std::size_t i);
    template <class Real>
    void measure_as();
    template <class Real>
    void pack_as();
    template <class Real>
    void finish_as();
    template <class Real>
    void keep(const Layer& layer, std::size_t i, bool is_sent);
    bool is_finite(const Layer& layer) const {
        return std::all_of(
            norms.begin() + static_cast<std::ptrdiff_t>(layer.first),
            norms.begin() + static_cast<std::ptrdiff_t>(layer.first + chunks_of(layer)),
            [](double norm) { return std::isfinite(norm); });
    }
};

template <class Real>
ChunksHook::Job::Sum<Real> ChunksHook::Job::sum_of(const Layer& layer, std::size_t i) {
    const std::size_t n = lengths[layer.first + i], first = i * chunk;
    auto* const gradient =
        reinterpret_cast<Real*>(numbers.require(3 * std::min(chunk, layer.count) * sizeof(Real)));
    Real *const velocity = gradient + n, *const total = velocity + n;
    cpu::convert(gradient, compute(), layer.gradient + first * dtype_size(dtype), dtype, n);
    if (layer.absent) {
        std::copy_n(gradient, n, total);
        return {velocity, total, n};
    }
    const auto* const error = reinterpret_cast<const Real*>(layer.error) + first;
    const auto* const before =
        layer.velocity ? reinterpret_cast<const Real*>(layer.velocity) + first : nullptr;
    const Real factor = static_cast<Real>(momentum);
    for (std::size_t k = 0; k < n; ++k)
        velocity[k] = before ? factor * before[k] + gradient[k] : gradient[k];
    for (std::size_t k = 0; k < n; ++k) total[k] = error[k] + velocity[k];
    return {velocity, total, n};
}

template <class Real>
void ChunksHook::Job::measure_as() {
    for (const Layer& layer : layers)
        for (std::size_t i = 0; i < chunks_of(layer); ++i) {
            const auto sum = sum_of<Real>(layer, i);
            const double norm =
                cpu::norm_terms(sum.total, sum.count, compute(), cpu::NormKind::kMagnitudes);
            norms[layer.first + i] =
                std::isfinite(norm) ? norm : std::numeric_limits<double>::quiet_NaN();
        }
}

// All ranks have the same norms. A short chunk counts by its mean, as it costs less.
void ChunksHook::Job::choose() {
    const DefaultArithmeticScope arithmetic;
    std::fill(sent.begin(), sent.end(), char{0});
    order.clear();
    std::size_t elements = 0;
    for (const Layer& layer : layers) {
        if (!is_finite(layer)) continue;
        for (std::size_t c = layer.first; c < layer.first + chunks_of(layer); ++c) {
            order.push_back(c);
            magnitudes[c] = norms[c] / static_cast<double>(lengths[c]);
        }
        elements += layer.count;
    }
    sent_elements = 0;
    if (order.empty()) return;
    const std::size_t wanted = topk_count({DDP_CODEC_TOPK, 0, 0, share}, elements);
    if (wanted < elements)
        std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
            return magnitudes[a] != magnitudes[b] ? magnitudes[a] > magnitudes[b] : a < b;
        });
    for (std::size_t next = 0; sent_elements < wanted; ++next) {
        sent[order[next]] = 1;
        sent_elements += lengths[order[next]];
    }
}

template <class Real>
void ChunksHook::Job::pack_as() {
    auto* to = reinterpret_cast<Real*>(packed.require(sent_elements * sizeof(Real)));
    for (const Layer& layer : layers)
        for (std::size_t i = 0; i < chunks_of(layer); ++i) {
            if (!sent[layer.first + i]) continue;
            const auto sum = sum_of<Real>(layer, i);
            to = std::copy_n(sum.total, sum.count, to);
        }
}

template <class Real>
void ChunksHook::Job::finish_as() {
    const auto* from = reinterpret_cast<const Real*>(packed.get());
    for (const Layer& layer : layers) {
        const bool finite = is_finite(layer);
        for (std::size_t i = 0; i < chunks_of(layer); ++i) {
            const bool is_sent = sent[layer.first + i] != 0;
            if (finite) keep<Real>(layer, i, is_sent);
            const std::size_t n = lengths[layer.first + i];
            auto* const rest = reinterpret_cast<Real*>(numbers.require(n * sizeof(Real)));
            if (!is_sent)
                std::fill_n(rest, n, finite ? Real(0) : std::numeric_limits<Real>::quiet_NaN());
            cpu::convert(layer.gradient + i * chunk * dtype_size(dtype), dtype,
                         is_sent ? from : rest, compute(), n);
            if (is_sent) from += n;
        }
    }
}

// Momentum factor masking: a chunk that has waited begins with no velocity when it is sent, so that
// old gradients do not go on pushing. One that is sent in each step has the usual momentum.
template <class Real>
void ChunksHook::Job::keep(const Layer& layer, std::size_t i, bool is_sent) {
    if (layer.absent && is_sent) return;
    const auto sum = sum_of<Real>(layer, i);
    auto* const error = reinterpret_cast<Real*>(layer.error) + i * chunk;
    if (layer.absent) {
        // zeros, but for a gradient of earlier steps that counts
        for (std::size_t k = 0; k < sum.count; ++k) error[k] += sum.total[k];
        return;
    }
    const bool masked =
        is_sent && std::any_of(error, error + sum.count, [](Real x) { return x != 0; });
    if (is_sent)
        std::fill_n(error, sum.count, Real(0));
    else
        std::copy_n(sum.total, sum.count, error);
    if (!layer.velocity) return;
    auto* const velocity = reinterpret_cast<Real*>(layer.velocity) + i * chunk;
    if (masked)
        std::fill_n(velocity, sum.count, Real(0));
    else
        std::copy_n(sum.velocity, sum.count, velocity);
}

WorkPtr ChunksHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    if (bucket.stream)
        fail(DDP_ERROR_UNSUPPORTED, kChunks, ": ", tag.label ? *tag.label : "a bucket",
             " is on a device, and this hook reduces gradients in CPU memory only. Use topk, "
             "quantize or powersgd there");
    steps_.note(bucket.step);
    const std::shared_ptr<Job> job = jobs_.take(bucket.index);
    if (is_real(bucket.dtype)) lay_out(bucket, *job);
    if (!is_real(bucket.dtype) || job->layers.empty())
        return AllreduceHook().reduce(group, bucket, tag);
    job->measure();
    return group.impl
        ->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, job->norms.data(), job->norms.size(), DDP_F64,
                  DDP_SUM, 0, bucket.device},
                 tag.keeping(job))
        ->then(
            [job, &group, op = bucket.op(), device = bucket.device,
             gradients = tag.memory.used](const OpTag& inherited) -> WorkPtr {
                job->choose();
                if (job->sent_elements == 0) return nullptr;
                job->pack();
                return group.impl->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, job->packed.get(),
                                           job->sent_elements, job->compute(), op, 0, device},
                                          inherited.keeping(job));
            },
            true, tag)
        ->then(
            // The bucket's memory too must last until here.
            [job, gradients = tag.memory.used](const OpTag&) -> WorkPtr {
                job->finish();
                return nullptr;
            },
            true, tag);
}

// Compression rises from 1 to 1 / ratio by equal steps. Only exact operations and divisions: ranks
// of other machines come to the same bits.
double ChunksHook::share() const {
    const DefaultArithmeticScope arithmetic;
    const std::int64_t step = steps_.begun() - 1;
    if (step >= setup_.warmup) return setup_.ratio;
    const double part = static_cast<double>(step) / static_cast<double>(setup_.warmup);
    return 1 / (1 + (1 / setup_.ratio - 1) * part);
}

void ChunksHook::lay_out(const ddp_bucket& bucket, Job& job) {
    job.dtype = bucket.dtype;
    job.chunk = setup_.chunk;
    job.momentum = setup_.momentum;
    job.share = share();
    job.layers.clear();
    job.lengths.clear();
    std::size_t chunks = 0;
    for (const BucketTensor& tensor : bucket.tensors) {
        if (tensor.count == 0) continue;
        std::byte* const velocity = setup_.momentum > 0 ? velocities_.of(bucket, tensor) : nullptr;
        job.layers.push_back({static_cast<std::byte*>(tensor.gradient), errors_.of(bucket, tensor),
                              velocity, static_cast<std::size_t>(tensor.count), chunks,
                              tensor.absent});
        const std::size_t count = job.layers.back().count;
        for (std::size_t begin = 0; begin < count; begin += job.chunk, ++chunks)
            job.lengths.push_back(std::min(job.chunk, count - begin));
    }
    job.norms.resize(chunks);
    job.magnitudes.resize(chunks);
    job.sent.resize(chunks);
}

void ChunksHook::save(HookState& state) const {
    steps_.save(state);
    errors_.save(state);
    velocities_.save(state);
}

void ChunksHook::load(const HookState& state) {
    const std::int64_t steps = StepCounter::read(state, kChunks);
    for (const auto& array : state.arrays) {
        const bool kept = array.key == HookState::kError ||
                          (array.key == HookState::kVelocity && setup_.momentum > 0);
        if (!kept)
            fail(DDP_ERROR_INVALID_ARGUMENT, kChunks, ": the state has an array '", array.key,
                 "', which this hook does not keep",
                 array.key == HookState::kVelocity ? " without momentum" : "");
    }
    auto errors = errors_.read(state), velocities = velocities_.read(state);
    errors_.load(std::move(errors));
    velocities_.load(std::move(velocities));
    steps_.resume(steps);
}

HookPtr make_chunks(OptionReader& options) {
    ChunksHook::Setup setup;
    options.integer("chunk", setup.chunk, 1);
    options.real("ratio", setup.ratio, 0);
    options.real("momentum", setup.momentum, 0);
    options.integer("warmup", setup.warmup, 0);
    if (!(setup.ratio > 0 && setup.ratio <= 1))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("ratio"), " is ", setup.ratio,
                  "; it must be above 0 and at most 1: the share of a bucket's elements that is "
                  "sent");
    if (setup.momentum >= 1)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, options.name("momentum"), " is ", setup.momentum,
                  "; it must be at least 0 and below 1");
    return std::make_shared<ChunksHook>(setup);
}

}  // namespace libddp
