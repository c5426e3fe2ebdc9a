// ddp-bench transfer: how fast gradients are packed into buckets on a GPU and unpacked again, and
// how fast hooks compress them, beside the GPU's own copies.
#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "cuda/gpu.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "kernels/on_device.h"
#include "measure.h"
#include "models.h"

namespace bench {
namespace {

// Passes between two looks at the clock, so that launching hides behind the work.
constexpr int kPasses = 10;
// Warm-up before anything counts, so that the GPU's clocks are those of work.
constexpr double kWarmUpMs = 1000;
// Columns of P and Q, as in the benchmark of PowerSGD beside PyTorch's.
constexpr std::size_t kRank = 4;

std::shared_ptr<void> random_floats(const ddp_device& device, std::size_t count) {
    auto memory = allocate_on(device, 4 * count);
    fill_with_random(memory.get(), count);
    return memory;
}

// Where the parameters of a model go: the last come first, and a bucket is full when it has so many
// bytes.
std::vector<std::vector<std::size_t>> plan_buckets(const Model& model, double bucket_mb) {
    const double cap = bucket_mb * 1048576;
    std::vector<std::vector<std::size_t>> buckets;
    double bytes = cap;
    for (std::size_t i = model.size(); i-- > 0;) {
        if (bytes >= cap) {
            buckets.emplace_back();
            bytes = 0;
        }
        buckets.back().push_back(i);
        bytes += 4 * static_cast<double>(model[i].count());
    }
    return buckets;
}

// The gradients of a model, each in memory of its own, and the buckets that they go to.
class Job {
public:
    Job(const Model& model, const Options& options, const ddp_device& device)
        : stream_(libddp::on_device::make_stream(device)) {
        for (const auto& params : plan_buckets(model, options.bucket_mb)) {
            Bucket& bucket = buckets_.emplace_back();
            for (const std::size_t param : params) {
                const auto count = static_cast<std::size_t>(model[param].count());
                gradients_.push_back(random_floats(device, count));
                bucket.gradients.push_back({nullptr, gradients_.back().get(), count});
                bucket.offsets.push_back(bucket.bytes);
                bucket.bytes += (4 * count + 63) / 64 * 64;
                count_ += count;
            }
            bucket.memory = allocate_on(device, bucket.bytes);
            bucket.other = allocate_on(device, bucket.bytes);
            bucket.halves = allocate_on(device, bucket.bytes / 2);
            fill_with_random(bucket.memory.get(), bucket.bytes / 4);
            fill_with_random(bucket.halves.get(), bucket.bytes / 8);
        }
    }

    std::size_t count() const { return count_; }
    std::size_t buckets() const { return buckets_.size(); }
    const libddp::DeviceStream& stream() const { return *stream_; }

    // The device's own copy of as many bytes: each bucket in one piece.
    void copy() const {
        for (const Bucket& bucket : buckets_)
            check_cuda(cudaMemcpyAsync(bucket.other.get(), bucket.memory.get(), bucket.bytes,
                                       cudaMemcpyDeviceToDevice,
                                       static_cast<cudaStream_t>(stream_->handle())),
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
                void* place = static_cast<std::byte*>(there.get()) +
                              offsets[i] / 4 * libddp::dtype_size(dtype);
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

// The gradients of a model, as a hook that gathers sees them in a world of one; with errors, unless
// the hook keeps none. The sum of both is the same after each pass.
class Coded {
public:
    Coded(const Model& model, const Options& options, const ddp_device& device,
          const libddp::DeviceStream& stream, const ddp_codec& codec)
        : stream_(stream), keeps_errors_(codec.kind != DDP_CODEC_QUANTIZE) {
        for (const auto& params : plan_buckets(model, options.bucket_mb)) {
            Bucket& bucket = buckets_.emplace_back();
            bucket.batch.codec = codec;
            bucket.batch.dtype = DDP_F32;
            bucket.batch.world = 1;
            bucket.batch.size = (params.size() + 7) / 8 * 8;
            for (const std::size_t param : params) {
                const auto count = static_cast<std::size_t>(model[param].count());
                if (count == 0) continue;
                bucket.memory.push_back(random_floats(device, count));
                void* gradient = bucket.memory.back().get();
                if (keeps_errors_) bucket.memory.push_back(random_floats(device, count));
                void* error = keeps_errors_ ? bucket.memory.back().get() : nullptr;
                bucket.parts.push_back({gradient, error, count, bucket.batch.size});
                bucket.batch.size += (libddp::packed_size(codec, DDP_F32, count) + 7) / 8 * 8;
                elements_ += static_cast<double>(count);
            }
            packed_ += static_cast<double>(bucket.batch.size);
            bucket.batch.parts = bucket.parts.data();
            bucket.batch.part_count = bucket.parts.size();
            bucket.memory.push_back(allocate_on(device, bucket.batch.size));
            bucket.batch.gathered = bucket.memory.back().get();
            bucket.memory.push_back(
                allocate_on(device, libddp::on_device::encode_scratch(stream, bucket.batch)));
            bucket.batch.scratch = bucket.memory.back().get();
        }
    }

    // The fewest bytes that a pass can read and write: gradient and error once. Without an error
    // nobody reads the old gradient.
    double pack_bytes() const { return (keeps_errors_ ? 8 : 4) * elements_ + packed_; }
    double unpack_bytes() const { return (keeps_errors_ ? 16 : 4) * elements_ + packed_; }
    void pack() const {
        for (const Bucket& bucket : buckets_) libddp::on_device::encode(stream_, bucket.batch);
    }
    void unpack() const {
        for (const Bucket& bucket : buckets_) libddp::on_device::decode(stream_, bucket.batch, 1);
    }

private:
    struct Bucket {
        std::vector<std::shared_ptr<void>> memory;
        std::vector<ddp_codec_part> parts;
        ddp_codec_batch batch{};
    };

    const libddp::DeviceStream& stream_;
    const bool keeps_errors_;
    std::deque<Bucket> buckets_;
    double elements_ = 0, packed_ = 0;
};

// The matrices of a model, with errors, as the hook powersgd sees them.
class LowRank {
public:
    LowRank(const Model& model, const Options& options, const ddp_device& device,
            const libddp::DeviceStream& stream)
        : device_(device), stream_(stream) {
        for (const auto& params : plan_buckets(model, options.bucket_mb)) {
            Bucket& bucket = buckets_.emplace_back();
            for (const std::size_t param : params) {
                const Parameter& p = model[param];
                if (p.shape.size() < 2 || p.count() == 0) continue;
                const auto rows = static_cast<std::size_t>(p.shape[0]);
                const std::size_t columns = static_cast<std::size_t>(p.count()) / rows;
                if (2 * kRank * (rows + columns) < rows * columns) add(bucket, rows, columns);
            }
        }
    }

    // The fewest bytes that a pass can read and write, but for P and Q.
    double bytes(ddp_low_rank_op op) const {
        return (op == DDP_LOW_RANK_RESTORE ? 16 : 8) * elements_;
    }
    void run(ddp_low_rank_op op) const {
        for (const Bucket& bucket : buckets_)
            libddp::on_device::low_rank(stream_, op,
                                        op == DDP_LOW_RANK_PROJECT        ? bucket.project
                                        : op == DDP_LOW_RANK_PROJECT_BACK ? bucket.project_back
                                                                          : bucket.restore,
                                        DDP_F32);
    }

private:
    struct Bucket {
        std::vector<ddp_low_rank> project, project_back, restore;
    };

    float* floats(std::size_t count) {
        memory_.push_back(random_floats(device_, count));
        return static_cast<float*>(memory_.back().get());
    }
    // The result of a pass is not the input of the next one, so that numbers stay of usual size:
    // restoring leaves the sum as it was, and only the sum to which Q = M^T P is added grows
    // slowly.
    void add(Bucket& bucket, std::size_t rows, std::size_t columns) {
        const std::size_t count = rows * columns;
        elements_ += static_cast<double>(count);
        ddp_low_rank m{};
        m.gradient = floats(count);
        m.error = floats(count);
        m.p = floats(rows * kRank);
        m.q = m.own_q = floats(columns * kRank);
        m.rows = m.p_stride = rows;
        m.columns = m.q_stride = columns;
        m.rank = kRank;
        m.parts = floats(kRank * columns * libddp::low_rank_parts(rows));
        bucket.restore.push_back(m);
        bucket.project.push_back(m);
        bucket.project.back().p = floats(rows * kRank);
        bucket.project_back.push_back(m);
        bucket.project_back.back().own_q = floats(columns * kRank);
    }

    const ddp_device device_;
    const libddp::DeviceStream& stream_;
    std::vector<std::shared_ptr<void>> memory_;
    std::vector<Bucket> buckets_;
    double elements_ = 0;
};

using Pass = std::function<void()>;

// Milliseconds of each kind of pass, once for each iteration. All kinds take turns, so that each
// meets the same clocks.
std::vector<std::vector<double>> time_passes(const Job& job, std::int64_t iterations,
                                             const std::vector<Pass>& kinds) {
    GpuTimer timer(job.stream().handle());
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
    const Model model = find_model(options.model);
    const Job job(model, options, device);
    const auto coded = [&](const ddp_codec& codec) {
        return Coded(model, options, device, job.stream(), codec);
    };
    const Coded quantize = coded({DDP_CODEC_QUANTIZE, 0, 512, 0}),
                onebit = coded({DDP_CODEC_ONEBIT, 0, 512, 0}),
                topk = coded({DDP_CODEC_TOPK, 0, 0, 0.01});
    const LowRank matrices(model, options, device, job.stream());
    struct Kind {
        const char* name;
        double bytes;  // read and written
        Pass pass;
    };
    const auto elements = static_cast<double>(job.count());
    const auto low_rank = [&](const char* name, ddp_low_rank_op op) {
        return Kind{name, matrices.bytes(op), [&matrices, op] { matrices.run(op); }};
    };
    // The unpacked bytes were packed undivided, so numbers stay of ordinary size.
    const std::vector<Kind> kinds = {
        {"copy", 8 * elements, [&] { job.copy(); }},
        {"pack and divide", 8 * elements, [&] { job.pack(DDP_F32, 1.0 / 3); }},
        {"pack", 8 * elements, [&] { job.pack(DDP_F32, 1); }},
        {"pack to f16", 6 * elements, [&] { job.pack(DDP_F16, 1.0 / 3); }},
        {"unpack", 8 * elements, [&] { job.unpack(DDP_F32); }},
        {"unpack from f16", 6 * elements, [&] { job.unpack(DDP_F16); }},
        {"quantize", quantize.pack_bytes(), [&] { quantize.pack(); }},
        {"unpack quantize", quantize.unpack_bytes(), [&] { quantize.unpack(); }},
        {"1-bit", onebit.pack_bytes(), [&] { onebit.pack(); }},
        {"unpack 1-bit", onebit.unpack_bytes(), [&] { onebit.unpack(); }},
        {"top-k", topk.pack_bytes(), [&] { topk.pack(); }},
        {"unpack top-k", topk.unpack_bytes(), [&] { topk.unpack(); }},
        low_rank("P = M Q", DDP_LOW_RANK_PROJECT),
        low_rank("Q = M^T P", DDP_LOW_RANK_PROJECT_BACK),
        low_rank("M = P Q^T", DDP_LOW_RANK_RESTORE)};
    const std::int64_t iterations = options.iterations() > 0 ? options.iterations() : 50;
    std::vector<Pass> passes(kinds.size());
    std::transform(kinds.begin(), kinds.end(), passes.begin(),
                   [](const Kind& kind) { return kind.pass; });
    const auto series = time_passes(job, iterations, passes);
    std::vector<Row> rows;
    double copy_speed = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        const double speed = kinds[i].bytes / median(series[i]) / 1e6;
        if (rows.empty()) copy_speed = speed;
        Row row =
            make_row("transfer", 1, "cuda", static_cast<std::int64_t>(kinds[i].bytes), series[i]);
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
