// ddp-bench transfer: how fast gradients are packed into buckets on a GPU and unpacked again, beside its own copies.
#include <algorithm>
#include <functional>
#include <vector>

#include "benchmarks.h"
#include "cuda/gpu.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "measure.h"
#include "models.h"

namespace bench {
namespace {

// Passes between two looks at the clock, so that launching hides behind the work.
constexpr int kPasses = 10;
// Of work before anything counts, so that the GPU's clocks are those of work.
constexpr double kWarmUpMs = 1000;

// The gradients of a model, each in memory of its own, and the buckets that they go to.
class Job {
public:
    Job(const Model& model, const Options& options, const ddp_device& device)
        : stream_(libddp::on_device::make_stream(device)) {
        const auto cap = static_cast<std::size_t>(options.bucket_mb * 1048576);
        for (std::size_t i = model.size(); i-- > 0;) {
            const auto count = static_cast<std::size_t>(model[i].count());
            gradients_.push_back(allocate_on(device, 4 * count));
            fill_with_random(gradients_.back().get(), count);
            if (buckets_.empty() || buckets_.back().bytes >= cap) buckets_.push_back({});
            Bucket& bucket = buckets_.back();
            bucket.gradients.push_back({nullptr, gradients_.back().get(), count});
            bucket.offsets.push_back(bucket.bytes);
            bucket.bytes += (4 * count + 63) / 64 * 64;
            count_ += count;
        }
        for (Bucket& bucket : buckets_) {
            bucket.memory = allocate_on(device, bucket.bytes);
            bucket.other = allocate_on(device, bucket.bytes);
            bucket.halves = allocate_on(device, bucket.bytes / 2);
            fill_with_random(bucket.memory.get(), bucket.bytes / 4);
            fill_with_random(bucket.halves.get(), bucket.bytes / 8);
        }
    }

    std::size_t count() const { return count_; }
    std::size_t buckets() const { return buckets_.size(); }
    void* stream() const { return stream_->handle(); }

    // What the device itself does with as many bytes: each bucket in one piece.
    void copy() const {
        for (const Bucket& bucket : buckets_)
            check_cuda(cudaMemcpyAsync(bucket.other.get(), bucket.memory.get(), bucket.bytes, cudaMemcpyDeviceToDevice,
                                       static_cast<cudaStream_t>(stream())),
                       "cudaMemcpyAsync");
    }
    void pack(ddp_dtype to, double scale) const {
        for (const Bucket& bucket : buckets_)
            libddp::on_device::transfer(*stream_, bucket.segments(to, true), DDP_F32, to, scale);
    }
    void unpack(ddp_dtype from) const {
        for (const Bucket& bucket : buckets_)
            libddp::on_device::transfer(*stream_, bucket.segments(from, false), from, DDP_F32, 1);
    }

private:
    struct Bucket {
        std::size_t bytes = 0;
        std::vector<ddp_segment> gradients;  // dst: not yet known
        std::vector<std::size_t> offsets;    // in bytes of f32
        std::shared_ptr<void> memory, other, halves;

        std::vector<ddp_segment> segments(ddp_dtype dtype, bool into_bucket) const {
            std::vector<ddp_segment> result = gradients;
            for (std::size_t i = 0; i < result.size(); ++i) {
                const auto& there = dtype == DDP_F32 ? memory : halves;
                void* place = static_cast<std::byte*>(there.get()) + offsets[i] / 4 * libddp::dtype_size(dtype);
                void* own = const_cast<void*>(result[i].src);
                result[i].dst = into_bucket ? place : own;
                result[i].src = into_bucket ? own : place;
            }
            return result;
        }
    };

    const libddp::StreamPtr stream_;
    std::vector<std::shared_ptr<void>> gradients_;
    std::vector<Bucket> buckets_;
    std::size_t count_ = 0;
};

using Pass = std::function<void()>;

// Milliseconds of each kind of pass, once for each iteration. All kinds take turns, so that each meets the same clocks.
std::vector<std::vector<double>> time_passes(const Job& job, std::int64_t iterations, const std::vector<Pass>& kinds) {
    GpuTimer timer(job.stream());
    std::vector<Iteration> loops;
    loops.reserve(kinds.size());
    for (const Pass& pass : kinds)
        loops.emplace_back([&] {
            timer.begin();
            for (int k = 0; k < kPasses; ++k) pass();
            return timer.end() / kPasses;
        });
    for (const double end = now_ms() + kWarmUpMs; now_ms() < end;)
        for (const Iteration& loop : loops) loop();
    const Ranks alone{[] {}, [](std::int64_t&) {}, [](std::vector<double>&) {}};
    return measure(alone, {iterations, 0}, loops);
}

}  // namespace

std::vector<Row> run_transfer(const Options& options) {
    const ddp_device device = parse_device(options.device);
    const Job job(find_model(options.model), options, device);
    struct Kind {
        const char* name;
        double bytes_per_element;  // read and written
        Pass pass;
    };
    // What is unpacked was packed undivided: numbers stay of ordinary size.
    const std::vector<Kind> kinds = {{"copy", 8, [&] { job.copy(); }},
                                     {"pack and divide", 8, [&] { job.pack(DDP_F32, 1.0 / 3); }},
                                     {"pack", 8, [&] { job.pack(DDP_F32, 1); }},
                                     {"pack to f16", 6, [&] { job.pack(DDP_F16, 1.0 / 3); }},
                                     {"unpack", 8, [&] { job.unpack(DDP_F32); }},
                                     {"unpack from f16", 6, [&] { job.unpack(DDP_F16); }}};
    const std::int64_t iterations = options.iterations() > 0 ? options.iterations() : 50;
    std::vector<Pass> passes(kinds.size());
    std::transform(kinds.begin(), kinds.end(), passes.begin(), [](const Kind& kind) { return kind.pass; });
    const auto series = time_passes(job, iterations, passes);
    std::vector<Row> rows;
    double copy_speed = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        const double bytes = kinds[i].bytes_per_element * static_cast<double>(job.count());
        const double speed = bytes / median(series[i]) / 1e6;
        if (rows.empty()) copy_speed = speed;
        Row row = make_row("transfer", 1, "cuda", static_cast<std::int64_t>(bytes), series[i]);
        row["what"] = kinds[i].name;
        row["model"] = options.model;
        row["buckets"] = job.buckets();
        row["gb_per_s"] = speed;
        row["of_copy"] = speed / copy_speed;
        rows.push_back(row);
    }
    return rows;
}

}  // namespace bench
