// ddp-bench replay: the gradients of a real model, written in the order of a backward pass.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "benchmarks.h"
#include "gradients.h"
#include "groups.h"
#include "measure.h"
#include "models.h"
#include "traced.h"
#include "training.h"

namespace bench {
namespace {

double cpu_ms(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Keeps a core busy. It counts the time that this thread runs, not the time that passes: where
// communication takes the core away, real work would be as much later.
void compute(double milliseconds) {
    if (milliseconds <= 0) return;
    const double end = cpu_ms(CLOCK_THREAD_CPUTIME_ID) + milliseconds;
    while (cpu_ms(CLOCK_THREAD_CPUTIME_ID) < end) {
    }
}

// Waits as a processor does for a pass on a GPU: until a moment, whatever it did meanwhile.
void sleep_until(double moment_ms) {
    const double left = moment_ms - now_ms();
    if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(left));
}

// The value that a rank writes into a gradient: another one for each rank, parameter and iteration,
// all exact in f32.
float value_of(int rank, std::size_t param, std::int64_t iteration) {
    return static_cast<float>(1 + rank + static_cast<int>(param % 64) +
                              static_cast<int>(iteration % 16));
}

// The same backward pass with and without libddp, so that the difference is libddp's doing.
class Backward {
public:
    Backward(const Model& model, const Options& options, int rank)
        : rank_(rank), sleeps_(options.sleep) {
        for (const double share : work_shares(model)) costs_.push_back(options.compute_ms * share);
    }

    // `ready` is called with a parameter's index once its gradient is written; the last registered
    // parameter comes first.
    template <typename Ready>
    void run(const std::vector<Gradient>& gradients, std::int64_t iteration, Ready ready) const {
        double due = now_ms();
        for (std::size_t i = gradients.size(); i-- > 0;) {
            due += costs_[i];
            if (sleeps_)
                sleep_until(due);
            else
                compute(costs_[i]);
            std::fill_n(gradients[i].data, gradients[i].count, value_of(rank_, i, iteration));
            ready(i);
        }
    }

private:
    std::vector<double> costs_;
    int rank_;
    bool sleeps_;
};

// Each gradient's first and last element must be the mean of what the ranks wrote.
void check_means(const std::vector<Gradient>& gradients, int world, std::int64_t iteration) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const Gradient& g = gradients[i];
        if (g.count == 0) continue;
        double mean = 0;
        for (int rank = 0; rank < world; ++rank)
            mean += value_of(rank, i, iteration) / static_cast<double>(world);
        for (const float got : {g.data[0], g.data[g.count - 1]}) {
            if (std::abs(got - mean) <= 1e-5 * mean) continue;
            throw std::runtime_error("the gradient of parameter " + std::to_string(i) +
                                     " is not the mean over ranks");
        }
    }
}

// The steps of one context, and the CPU time that this process has spent in them.
struct Variant {
    Variant(ddp_group* group, const ddp_context_options& options, double mb, const Model& model,
            const std::vector<Gradient>* own, std::optional<double> clips_at = {})
        : gradients(group, options, model, own, {.norm = clips_at.has_value()}),
          max_norm(clips_at),
          votes((options.flags & DDP_CONTEXT_VOTES) != 0),
          world(ddp_group_world_size(group)),
          bucket_mb(mb) {}

    // One step of training with libddp.
    double step(const Backward& backward, std::int64_t iteration) {
        const double start = now_ms(), cpu_start = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
        gradients.begin_step();
        if (votes) gradients.vote(DDP_VOTE_USER);
        backward.run(gradients.all(), iteration, [&](std::size_t i) { gradients.ready(i); });
        gradients.finalize();
        if (votes) exact = gradients.votes() == DDP_VOTE_USER && exact;
        if (max_norm) gradients.clip(*max_norm);
        const double end = now_ms();
        cpu += cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
        ++steps;
        if (exact) check_means(gradients.all(), world, iteration);
        return end - start;
    }

    // The same, but communication begins when the backward pass has ended.
    double step_without_overlap(const Backward& backward, std::int64_t iteration) {
        const double start = now_ms();
        gradients.begin_step();
        backward.run(gradients.all(), iteration, [](std::size_t) {});
        for (std::size_t i = gradients.all().size(); i-- > 0;) gradients.ready(i);
        gradients.finalize();
        const double end = now_ms();
        check_means(gradients.all(), world, iteration);
        return end - start;
    }

    // The mean time of so many steps, of which only the last is synced.
    double steps_with_one_sync(const Backward& backward, std::int64_t iteration, unsigned count) {
        const double start = now_ms();
        for (unsigned i = 1; i <= count; ++i) {
            gradients.set_sync(i == count);
            gradients.begin_step();
            backward.run(gradients.all(), iteration,
                         [&](std::size_t param) { gradients.ready(param); });
            gradients.finalize();
        }
        const double end = now_ms();
        check_means(gradients.all(), world, iteration);
        return (end - start) / count;
    }

    // Milliseconds of CPU time a step, on the rank that needed most.
    double cpu_per_step(ddp_group* group) const {
        double most = cpu / static_cast<double>(steps);
        Result result;
        result.check(ddp_allreduce(group, nullptr, &most, 1, DDP_F64, DDP_MAX, nullptr, result));
        return most;
    }

    ddp_stats stats() const {
        ddp_stats stats{};
        stats.struct_size = sizeof stats;
        Result result;
        result.check(ddp_stats_get(gradients.context(), &stats, result));
        return stats;
    }

    // Bytes of gradients for each byte that was sent.
    double compression() const {
        const ddp_stats stats = this->stats();
        return static_cast<double>(stats.hook_bytes_in) /
               static_cast<double>(std::max<std::uint64_t>(1, stats.hook_bytes_out));
    }

    SharedGradients gradients;
    std::optional<double> max_norm;
    bool votes;
    bool exact = true;
    int world;
    double bucket_mb;
    double cpu = 0;
    std::int64_t steps = 0, tuning_steps = 0;
};

void use_hook(const Variant& variant, const Options& options) {
    Result result;
    result.check(ddp_use_hook(variant.gradients.context(), options.hook.c_str(),
                              options.hook_options.c_str(), result));
}

// Runs until libddp has found a bucket cap.
void tune(Variant& variant, const Backward& backward, std::int64_t& iteration) {
    do variant.step(backward, ++iteration);
    while (variant.stats().tuning);
    variant.tuning_steps = std::exchange(variant.steps, 0);
    variant.cpu = 0;
    variant.bucket_mb = static_cast<double>(variant.stats().bucket_cap_bytes) / 1048576;
}

Row row_of(const Variant& variant, ddp_group* group, const Options& options, const Model& model,
           const std::vector<double>& times, double local_ms) {
    Row row = make_row("replay", variant.world, ddp_group_backend(group), 4 * element_count(model),
                       times);
    row["local_ms"] = local_ms;
    row["model"] = options.model;
    row["params"] = model.size();
    row["buckets"] = ddp_context_bucket_count(variant.gradients.context());
    row["bucket_mb"] = variant.bucket_mb;
    row["first_bucket_mb"] = options.first_bucket_mb;
    row["compute_ms"] = options.compute_ms;
    row["sleep"] = options.sleep;
    row["groups"] = options.groups;
    row["mode"] = options.copy ? "copy" : "view";
    row["cpu_ms"] = variant.cpu_per_step(group);
    return row;
}

}  // namespace

std::vector<Row> run_replay(ddp_group* group, const Options& options) {
    if (options.device != "cpu") {
        if (options.sleep || options.without_overlap || options.votes ||
            !options.sync_every.empty())
            throw std::invalid_argument(
                "--sleep, --without-overlap, --votes and --sync-every require --device cpu");
        return run_replay_on_gpu(group, options);
    }
    const Model model = find_model(options.model);
    const OwnGradients own(model);
    const std::vector<Gradient>* place = options.copy ? &own.all() : nullptr;
    const Backward backward(model, options, ddp_group_rank(group));

    std::int64_t iteration = 0;
    const Iteration local = [&] {
        const double start = now_ms();
        backward.run(own.all(), ++iteration, [](std::size_t) {});
        return now_ms() - start;
    };
    std::vector<Iteration> loops = {local};
    std::list<Variant> variants;
    const auto add = [&](double mb, std::uint32_t flags,
                         std::optional<double> max_norm = {}) -> Variant& {
        Settings with = options;
        with.bucket_mb = mb;
        Variant& variant =
            variants.emplace_back(group, context_options(with, flags), mb, model, place, max_norm);
        loops.push_back([&] { return variant.step(backward, ++iteration); });
        return variant;
    };
    Variant& plain = add(options.bucket_mb, 0);
    std::vector<std::string> more;  // what the loops after that are called
    if (options.without_overlap) {
        more.push_back("without_overlap_ms");
        loops.push_back([&] { return plain.step_without_overlap(backward, ++iteration); });
    }
    for (const unsigned every : options.sync_every) {
        more.push_back("sync_every_" + std::to_string(every) + "_ms");
        loops.push_back(
            [&, every] { return plain.steps_with_one_sync(backward, ++iteration, every); });
    }
    const std::size_t after = loops.size();
    Variant *finding = nullptr, *hooked = nullptr;
    if (options.find_unused) finding = &add(options.bucket_mb, DDP_CONTEXT_FIND_UNUSED);
    const std::size_t with_norm = loops.size();
    if (options.norm) {
        add(options.bucket_mb, 0, HUGE_VAL);
        add(options.bucket_mb, 0, 1e-3).exact = false;
    }
    const std::size_t with_votes = loops.size();
    // Compared with a plain loop that follows: the first one comes after a loop without libddp, and
    // finds other things in the caches, which may make a difference of some percent.
    if (options.votes)
        for (const std::uint32_t flags : {std::uint32_t{DDP_CONTEXT_VOTES}, std::uint32_t{0}})
            add(options.bucket_mb, flags);
    std::list<Training> trainings;
    const std::size_t with_optimizer = loops.size();
    if (options.optimizer)
        for (const auto kind :
             {Training::Kind::kFull, Training::Kind::kSharded, Training::Kind::kInStep}) {
            Training& training =
                trainings.emplace_back(group, context_options(options), model, place, kind);
            loops.push_back([&] {
                return training.step([&](const auto& gradients, const Training::Ready& ready) {
                    backward.run(gradients, ++iteration, ready);
                });
            });
        }
    if (!options.hook.empty()) {
        use_hook(*(hooked = &add(options.bucket_mb, 0)), options);
        hooked->exact = false;  // the hook may be lossy
    }
    for (const double mb : options.also_mb) add(mb, 0);
    if (options.autotune) tune(add(options.bucket_mb, DDP_CONTEXT_AUTOTUNE), backward, iteration);
    const auto series = measure(ranks_of(group), {options.iterations(), options.seconds}, loops);

    Row row = row_of(plain, group, options, model, series[1], median(series[0]));
    for (std::size_t i = 0; i < more.size(); ++i) row[more[i]] = median(series[2 + i]);
    if (finding) {
        row["find_unused_ms"] = median(series[after]);
        row["find_unused_ratio"] = median(series[after]) / median(series[1]);
    }
    if (options.norm) {
        row["norm_ms"] = median(series[with_norm]);
        row["norm_ratio"] = median(series[with_norm]) / median(series[1]);
        row["clip_ms"] = median(series[with_norm + 1]);
        row["clip_ratio"] = median(series[with_norm + 1]) / median(series[1]);
    }
    if (options.votes) {
        row["votes_ms"] = median(series[with_votes]);
        row["votes_ratio"] = median(series[with_votes]) / median(series[with_votes + 1]);
    }
    if (options.optimizer) {
        const double full = median(series[with_optimizer]);
        row["optimizer_ms"] = full;
        row["sharded_ms"] = median(series[with_optimizer + 1]);
        row["sharded_ratio"] = median(series[with_optimizer + 1]) / full;
        row["in_step_ms"] = median(series[with_optimizer + 2]);
        row["in_step_ratio"] = median(series[with_optimizer + 2]) / full;
        for (Training& training : trainings) training.check(group);
    }
    if (hooked) {
        row["hook"] = ddp_hook_name(hooked->gradients.context());
        row["hook_options"] = options.hook_options;
        row["hook_ms"] = median(series.back());
        row["hook_ratio"] = median(series.back()) / median(series[1]);
        row["hook_cpu_ms"] = hooked->cpu_per_step(group);
        row["hook_compression"] = hooked->compression();
    }
    if (!options.trace.empty()) {
        HostMoments moments;
        Traced traced(plain.gradients, moments, options);
        traced.run([&](const std::vector<Gradient>& gradients, const Traced::Ready& ready) {
            backward.run(gradients, ++iteration, ready);
        });
        check_means(plain.gradients.all(), plain.world, iteration);
        traced.report(row, ddp_group_rank(group));
    }
    if (options.also_mb.empty() && !options.autotune) return {row};
    std::vector<Row> rows;
    for (const Variant& variant : variants) {
        const auto& times = series[rows.size() + 1];
        rows.push_back(row_of(variant, group, options, model, times, median(series[0])));
        rows.back()["ratio"] = median(times) / median(series[1]);
        rows.back()["tuning_steps"] = variant.tuning_steps;
    }
    return rows;
}

}  // namespace bench
