// ddp-bench replay: the gradients of a real model, written in the order of a backward pass.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "benchmarks.h"
#include "gradients.h"
#include "measure.h"
#include "models.h"

namespace bench {
namespace {

double thread_cpu_ms() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Keeps a core busy. It counts the time that this thread runs, not the time that passes: where communication takes the
// core away, real work would be as much later.
void compute(double milliseconds) {
    if (milliseconds <= 0) return;
    const double end = thread_cpu_ms() + milliseconds;
    while (thread_cpu_ms() < end) {
    }
}

// What a rank writes into a gradient: another value for each rank, parameter and iteration, all exact in f32.
float value_of(int rank, std::size_t param, std::int64_t iteration) {
    return static_cast<float>(1 + rank + static_cast<int>(param % 64) + static_cast<int>(iteration % 16));
}

// The same backward pass with and without libddp, so that the difference is libddp's doing.
class Backward {
public:
    Backward(const Model& model, double compute_ms, int rank) : rank_(rank) {
        const auto total = static_cast<double>(std::max<std::int64_t>(1, element_count(model)));
        for (const Parameter& p : model) costs_.push_back(compute_ms * static_cast<double>(p.count()) / total);
    }

    // `ready` is called with a parameter's index once its gradient is written; the last registered parameter comes
    // first.
    template <typename Ready>
    void run(const std::vector<Gradient>& gradients, std::int64_t iteration, Ready ready) const {
        for (std::size_t i = gradients.size(); i-- > 0;) {
            compute(costs_[i]);
            std::fill_n(gradients[i].data, gradients[i].count, value_of(rank_, i, iteration));
            ready(i);
        }
    }

private:
    std::vector<double> costs_;
    int rank_;
};

// Each gradient's first and last element must be the mean of what the ranks wrote.
void check_means(const std::vector<Gradient>& gradients, int world, std::int64_t iteration) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const Gradient& g = gradients[i];
        if (g.count == 0) continue;
        double mean = 0;
        for (int rank = 0; rank < world; ++rank) mean += value_of(rank, i, iteration) / static_cast<double>(world);
        for (const float got : {g.data[0], g.data[g.count - 1]}) {
            if (std::abs(got - mean) <= 1e-5 * mean) continue;
            throw std::runtime_error("the gradient of parameter " + std::to_string(i) + " is not the mean over ranks");
        }
    }
}

ddp_context_options context_options(const Options& options, std::uint32_t flags = 0) {
    ddp_context_options result;
    ddp_context_options_init(&result);
    result.bucket_cap_bytes = static_cast<std::uint64_t>(std::max(1.0, options.bucket_mb * 1048576));
    result.first_bucket_cap_bytes = static_cast<std::uint64_t>(std::max(1.0, options.first_bucket_mb * 1048576));
    result.flags = flags;
    return result;
}

// One step of training with libddp.
Iteration averaged_step(SharedGradients& shared, const Backward& backward, int world, std::int64_t& iteration) {
    return [&shared, &backward, world, &iteration] {
        const double start = now_ms();
        shared.begin_step();
        backward.run(shared.all(), ++iteration, [&](std::size_t i) { shared.ready(i); });
        shared.finalize();
        const double end = now_ms();
        check_means(shared.all(), world, iteration);
        return end - start;
    };
}

}  // namespace

std::vector<Row> run_replay(ddp_group* group, const Options& options) {
    const Model model = find_model(options.model);
    const int world = ddp_group_world_size(group);
    const OwnGradients own(model);
    SharedGradients shared(group, context_options(options), model, options.copy ? &own : nullptr);
    const Backward backward(model, options.compute_ms, ddp_group_rank(group));

    std::int64_t iteration = 0;
    const Iteration local = [&] {
        const double start = now_ms();
        backward.run(own.all(), ++iteration, [](std::size_t) {});
        return now_ms() - start;
    };
    std::vector<Iteration> loops = {local, averaged_step(shared, backward, world, iteration)};
    std::optional<SharedGradients> finding;
    if (options.find_unused) {
        finding.emplace(group, context_options(options, DDP_CONTEXT_FIND_UNUSED), model, options.copy ? &own : nullptr);
        loops.push_back(averaged_step(*finding, backward, world, iteration));
    }
    const auto series = measure(group, {options.iterations(), options.seconds}, loops);

    Row row = make_row("replay", world, ddp_group_backend(group), 4 * element_count(model), series[1]);
    row["local_ms"] = median(series[0]);
    row["model"] = options.model;
    row["params"] = model.size();
    row["buckets"] = ddp_context_bucket_count(shared.context());
    row["bucket_mb"] = options.bucket_mb;
    row["first_bucket_mb"] = options.first_bucket_mb;
    row["compute_ms"] = options.compute_ms;
    row["mode"] = options.copy ? "copy" : "view";
    if (options.find_unused) {
        row["find_unused_ms"] = median(series[2]);
        row["find_unused_ratio"] = median(series[2]) / median(series[1]);
    }
    return {row};
}

}  // namespace bench
