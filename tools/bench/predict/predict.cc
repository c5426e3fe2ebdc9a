#include "predict/predict.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "models.h"
#include "predict/schedule.h"
#include "predict/timeline.h"

namespace bench {
namespace {

constexpr double kGood = 0.9;  // efficiency, below which scaling has ended

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::invalid_argument("--measured: cannot read " + path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
        if (!line.empty()) lines.push_back(line);
    return lines;
}

Compute compute_of(const Model& model, const Options& options) {
    Compute compute;
    compute.backward_ms = options.compute_ms;
    compute.forward_ms = options.forward_ms >= 0 ? options.forward_ms : options.compute_ms / 2;
    compute.optimizer_ms = options.optimizer_ms;
    compute.jitter = options.jitter;
    compute.straggler = options.straggler;
    const std::vector<double> shares = work_shares(model);
    double done = 0;
    for (std::size_t i = shares.size(); i-- > 0;) compute.done.push_back(done += shares[i]);
    return compute;
}

std::string fixed(double value) {
    std::ostringstream text;
    text.setf(std::ios::fixed);
    text.precision(1);
    text << value;
    return text.str();
}

// A step with buckets of this size.
struct Candidate {
    double bucket_mb = 0;
    Schedule schedule;
    double bytes() const {  // the input of each rank in a step
        double sum = 0;
        for (const Collective& collective : schedule.collectives) sum += collective.bytes;
        return sum;
    }
};

class Predictor {
public:
    explicit Predictor(const Options& options)
        : options_(options),
          network_(find_network(options.network)),
          compute_(compute_of(find_model(options.model), options)) {
        if (!options.measured.empty()) measured_.emplace(lines_of(options.measured));
        if (measured_ && measured_->world() != options.world)
            throw std::invalid_argument("--measured: the rows are of a world of " + std::to_string(measured_->world()) +
                                        ", and --world is " + std::to_string(options.world));
    }

    StepTime step(const Candidate& candidate, int world, bool without_latency = false) const {
        const Cluster cluster{world, options_.ranks_a_host};
        const auto cost = [&](const Collective& collective) {
            Cost found =
                measured_ ? measured_cost(collective) : cost_of(network_, cluster, collective.kind, collective.bytes);
            if (without_latency) found.latency_ms = 0;
            return found;
        };
        return play(candidate.schedule.collectives, compute_, cost, world,
                    {options_.cores, options_.communication_cores});
    }
    double alone() const { return compute_.forward_ms + compute_.backward_ms + compute_.optimizer_ms; }
    double efficiency(const StepTime& time) const { return alone() / time.step; }

    Row row(const Candidate& candidate, int world, const StepTime& time) const {
        Row row;
        row["name"] = "predict";
        row["world"] = world;
        row["hosts"] = Cluster{world, options_.ranks_a_host}.hosts();
        row["bucket_mb"] = candidate.bucket_mb;
        row["buckets"] = candidate.schedule.buckets;
        row["collectives"] = candidate.schedule.collectives.size();
        row["bytes"] = static_cast<std::int64_t>(candidate.bytes());
        row["step_ms"] = rounded(time.step);
        row["compute_ms"] = rounded(time.compute);
        row["waiting_ms"] = rounded(time.waiting);
        row["exposed_ms"] = rounded(time.exposed);
        row["communication_ms"] = rounded(time.communication);
        row["efficiency"] = rounded(efficiency(time));
        return row;
    }

    // Why a step of this world takes longer than one of a rank alone.
    std::string reason(const Candidate& candidate, int world) const {
        const StepTime time = step(candidate, world);
        if (time.waiting > time.exposed)
            return fixed(time.waiting) + " ms of each step are spent waiting for the slowest rank";
        const std::string exposed =
            fixed(time.exposed) + " ms of each step are communication that no backward pass hides, mostly ";
        if (step(candidate, world, true).exposed < time.exposed / 2)
            return exposed + "latency: " + std::to_string(candidate.schedule.collectives.size()) +
                   " collectives a step. Larger buckets help";
        return exposed + "transfer: " + fixed(candidate.bytes() * 1e-6) +
               " MB from each rank. A faster network, a hook that compresses or a larger batch helps";
    }

private:
    Cost measured_cost(const Collective& collective) const {
        if (collective.kind == DDP_COLLECTIVE_ALLREDUCE) return measured_->allreduce(collective.bytes);
        throw std::invalid_argument("--measured: the hook '" + options_.hook +
                                    "' does not send by allreduce, and the file has only times of allreduces");
    }
    static double rounded(double value) { return std::round(value * 1e4) / 1e4 + 0.0; }  // no -0

    const Options& options_;
    const Network network_;
    const Compute compute_;
    std::optional<Measured> measured_;
};

std::vector<int> worlds_below(int world) {
    std::vector<int> worlds;
    for (int smaller = 1; smaller < world; smaller *= 2) worlds.push_back(smaller);
    return worlds;
}

// times: of the worlds of 2 and more ranks.
std::string where_it_ends(const Predictor& predictor, const Candidate& best, const std::map<int, StepTime>& times) {
    std::ostringstream text;
    text << std::setprecision(3);
    const auto bad = std::find_if(times.begin(), times.end(),
                                  [&](const auto& item) { return predictor.efficiency(item.second) < kGood; });
    if (bad != times.begin()) {
        const auto& [world, time] = *std::prev(bad);
        text << "Up to " << world << " ranks the efficiency is at least " << kGood << " (" << predictor.efficiency(time)
             << " with " << world << "). ";
    }
    if (bad != times.end())
        text << "With " << bad->first << " ranks the efficiency is " << predictor.efficiency(bad->second) << ": "
             << predictor.reason(best, bad->first) << ". ";
    return text.str();
}

}  // namespace

Prediction predict(const Options& options) {
    const Predictor predictor(options);
    const Model model = find_model(options.model);
    Prediction prediction;
    std::optional<Candidate> best;
    StepTime least;
    for (const double bucket_mb : options.bucket_mbs) {
        Options with = options;
        with.bucket_mb = bucket_mb;
        const Candidate candidate{bucket_mb, find_schedule(model, with)};
        const StepTime time = predictor.step(candidate, options.world);
        prediction.rows.push_back(predictor.row(candidate, options.world, time));
        if (best && time.step >= least.step) continue;
        best = candidate;
        least = time;
    }
    std::ostringstream text;
    if (options.bucket_mbs.size() > 1) text << "Of these bucket sizes " << best->bucket_mb << " MiB is the best. ";
    if (options.measured.empty() && options.world > 1) {
        std::map<int, StepTime> times{{options.world, least}};
        for (const int world : worlds_below(options.world)) {
            const StepTime time = predictor.step(*best, world);
            prediction.rows.push_back(predictor.row(*best, world, time));
            if (world > 1) times[world] = time;
        }
        text << where_it_ends(predictor, *best, times);
    }
    prediction.text = text.str();
    if (!prediction.text.empty()) prediction.text.back() = '\n';
    return prediction;
}

}  // namespace bench
