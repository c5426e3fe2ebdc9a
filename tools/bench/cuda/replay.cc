// ddp-bench replay --device cuda: the gradients of a real model, written on a GPU in the order of a
// backward pass.
#include <time.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "benchmarks.h"
#include "cuda/gpu.h"
#include "cuda/gpu_moments.h"
#include "gradients.h"
#include "groups.h"
#include "kernels/on_device.h"
#include "measure.h"
#include "models.h"
#include "traced.h"

namespace bench {
namespace {

double cpu_ms() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Floats that a kernel writes at least where it plays work: twice 64 MiB, which no cache holds and
// which take longer than a launch.
constexpr std::size_t kWork = std::size_t{16} << 20;
// Kernels that are timed together, to know what one takes.
constexpr int kTimed = 20;

// Writes each gradient by one kernel, as a backward pass does: from a source that is at least as
// long as the longest. Its other work is played by such kernels too, which write elsewhere.
class Backward {
public:
    Backward(const Model& model, const ddp_device& device, int rank)
        : stream_(libddp::on_device::make_stream(device)),
          shares_(work_shares(model)),
          extra_(model.size(), 0) {
        count_ = kWork;
        for (const Parameter& p : model)
            count_ = std::max(count_, static_cast<std::size_t>(p.count()));
        source_ = allocate_on(device, 4 * count_);
        elsewhere_ = allocate_on(device, 4 * count_);
        const std::vector<float> values(count_, static_cast<float>(rank + 1));
        check_cuda(cudaMemcpy(source_.get(), values.data(), 4 * count_, cudaMemcpyHostToDevice),
                   "cudaMemcpy");
        // the stream would not wait for the copy
        check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    }
    void* stream() const { return stream_->handle(); }

    // So much more that all of it takes about so long, and on all ranks as much.
    void take(double milliseconds, const std::vector<Gradient>& gradients, ddp_group* group) {
        if (milliseconds <= 0) return;
        const auto once = [&] { run(gradients, [](std::size_t) {}); };
        const double alone = time(once);
        const double all = time([&] {
            for (int i = 0; i < kTimed; ++i) play(count_);
        });
        double elements = std::max(0.0, milliseconds - alone) / std::max(1e-3, all) * kTimed *
                          static_cast<double>(count_);
        Result result;
        result.check(
            ddp_allreduce(group, nullptr, &elements, 1, DDP_F64, DDP_MAX, nullptr, result));
        for (std::size_t i = 0; i < extra_.size(); ++i)
            extra_[i] = static_cast<std::size_t>(elements * shares_[i]);
    }

    template <class Ready>
    void run(const std::vector<Gradient>& gradients, Ready ready) const {
        for (std::size_t i = gradients.size(); i-- > 0;) {
            for (std::size_t left = extra_[i]; left > 0; left -= std::min(left, count_))
                play(std::min(left, count_));
            libddp::on_device::transfer(*stream_,
                                        {{gradients[i].data, source_.get(), gradients[i].count}},
                                        DDP_F32, DDP_F32, 1);
            ready(i);
        }
    }
    void wait() const {
        check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream())),
                   "cudaStreamSynchronize");
    }

private:
    void play(std::size_t elements) const {
        libddp::on_device::transfer(*stream_, {{elsewhere_.get(), source_.get(), elements}},
                                    DDP_F32, DDP_F32, 1);
    }
    // Milliseconds that work takes on the GPU, not for the first time.
    template <class Work>
    double time(Work work) const {
        work();
        GpuTimer timer(stream());
        timer.begin();
        work();
        return timer.end();
    }

    const libddp::StreamPtr stream_;
    const std::vector<double> shares_;
    std::vector<std::size_t> extra_;  // elements that are written elsewhere before each gradient
    std::size_t count_ = 0;
    std::shared_ptr<void> source_, elsewhere_;
};

// Gradients of a model in memory that the program has allocated, in one piece.
struct Own {
    Own(const Model& model, const ddp_device& device) {
        std::size_t total = 0;
        for (const Parameter& p : model)
            total += (static_cast<std::size_t>(p.count()) + 63) / 64 * 64;
        memory = allocate_on(device, 4 * total);
        auto* next = static_cast<float*>(memory.get());
        for (const Parameter& p : model) {
            const auto count = static_cast<std::size_t>(p.count());
            gradients.push_back({next, count});
            next += (count + 63) / 64 * 64;
        }
    }
    std::shared_ptr<void> memory;
    std::vector<Gradient> gradients;
};

void check_means(const std::vector<Gradient>& gradients, int world) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (gradients[i].count == 0) continue;
        float got = 0;
        check_cuda(
            cudaMemcpy(&got, gradients[i].data + gradients[i].count - 1, 4, cudaMemcpyDeviceToHost),
            "cudaMemcpy");
        if (got != static_cast<float>(world + 1) / 2)
            throw std::runtime_error("the gradient of parameter " + std::to_string(i) +
                                     " is not the mean over ranks");
    }
}

// The steps of one context, and what each costs this process until everything is enqueued.
struct Steps {
    Steps(ddp_group* group, const Options& options, const Model& model,
          const std::vector<Gradient>* own, const Place& place)
        : gradients(group, context_options(options), model, own, {.place = &place}) {}

    void step(const Backward& backward) {
        gradients.begin_step();
        backward.run(gradients.all(), [&](std::size_t i) { gradients.ready(i); });
        gradients.finalize();
    }
    double time_step(const Backward& backward) {
        const double start = now_ms(), cpu_start = cpu_ms();
        step(backward);
        const double enqueued = now_ms();
        cpu.push_back(cpu_ms() - cpu_start);
        host.push_back(enqueued - start);
        backward.wait();
        return now_ms() - start;
    }

    SharedGradients gradients;
    std::vector<double> cpu, host;  // milliseconds of each step
};

}  // namespace

std::vector<Row> run_replay_on_gpu(ddp_group* group, const Options& options) {
    const ddp_device first = parse_device(options.device);
    std::int32_t devices = 1;
    Result asked;
    asked.check(ddp_device_count(DDP_DEVICE_CUDA, &devices, asked));
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    const ddp_device device{DDP_DEVICE_CUDA, (first.index + rank) % devices};
    const Model model = find_model(options.model);
    const Own own(model, device);
    Backward backward(model, device, rank);
    backward.take(options.compute_ms, own.gradients, group);
    const Place place{device, backward.stream()};
    Steps plain(group, options, model, options.copy ? &own.gradients : nullptr, place);
    std::optional<Steps> hooked;
    if (!options.hook.empty()) {
        hooked.emplace(group, options, model, options.copy ? &own.gradients : nullptr, place);
        Result result;
        result.check(ddp_use_hook(hooked->gradients.context(), options.hook.c_str(),
                                  options.hook_options.c_str(), result));
    }

    const Iteration local = [&] {
        const double start = now_ms();
        backward.run(own.gradients, [](std::size_t) {});
        backward.wait();
        return now_ms() - start;
    };
    std::vector<double> local_cpu;  // of each iteration
    const Iteration enqueue_alone = [&] {
        const double start = now_ms(), cpu_start = cpu_ms();
        backward.run(own.gradients, [](std::size_t) {});
        local_cpu.push_back(cpu_ms() - cpu_start);
        backward.wait();
        return now_ms() - start;
    };
    std::vector<Iteration> loops{local, [&] { return plain.time_step(backward); }, enqueue_alone};
    if (hooked) loops.push_back([&] { return hooked->time_step(backward); });
    const auto series = measure(ranks_of(group), {options.iterations(), options.seconds}, loops);
    plain.step(backward);  // the loop that came last may have written to the same gradients
    backward.wait();
    check_means(plain.gradients.all(), world);

    Row row =
        make_row("replay", world, ddp_group_backend(group), 4 * element_count(model), series[1]);
    row["local_ms"] = median(series[0]);
    row["model"] = options.model;
    row["params"] = model.size();
    row["buckets"] = ddp_context_bucket_count(plain.gradients.context());
    row["mode"] = options.copy ? "copy" : "view";
    // The time of the process until everything is enqueued, less the cost of the backward pass's
    // kernels alone.
    row["cpu_ms"] = median(counted(plain.cpu)) - median(counted(local_cpu));
    row["enqueue_ms"] = median(counted(plain.host));
    row["compute_ms"] = options.compute_ms;
    if (hooked) {
        row["hook"] = ddp_hook_name(hooked->gradients.context());
        row["hook_options"] = options.hook_options;
        row["hook_ms"] = median(series.back());
        row["hook_ratio"] = median(series.back()) / median(series[1]);
        row["hook_cpu_ms"] = median(counted(hooked->cpu)) - median(counted(local_cpu));
    }
    if (!options.trace.empty()) {
        const libddp::StreamPtr probe = libddp::on_device::make_stream(device);
        GpuMoments moments(backward.stream());
        Traced traced(plain.gradients, moments, options, probe->handle());
        traced.run([&](const std::vector<Gradient>& gradients, const Traced::Ready& ready) {
            backward.run(gradients, ready);
        });
        check_means(plain.gradients.all(), world);
        traced.report(row, rank);
    }
    return {row};
}

}  // namespace bench
