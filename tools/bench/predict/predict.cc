#include "predict/predict.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>

#include "models.h"
#include "predict/advice.h"
#include "predict/schedule.h"
#include "predict/timeline.h"
#include "util/text.h"
#include "write_text.h"

namespace bench {
namespace {

constexpr double kGood = 0.9;  // efficiency, below which scaling has ended

std::vector<std::string> lines_of(const std::string& path) {
    libddp::FileIn file(path);
    if (!file) throw std::invalid_argument("--measured: cannot read " + path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
        if (!line.empty()) lines.push_back(line);
    return lines;
}

void save_plan(const std::string& path, const std::string& text) {
    try {
        libddp::write_file(path, text + "\n");
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(std::string("--save-plan: ") + error.what());
    }
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

double rounded(double value) {
    return std::round(value * 1e4) / 1e4 + 0.0;  // no -0
}

// A way to make a step.
struct Candidate {
    Settings settings;
    Schedule schedule;
    std::vector<Layer> layers;
    std::string name;     // of the schedule, as --schedule has it
    double piece_mb = 0;  // 0: buckets are not cut

    double piece_bytes() const {
        return piece_mb > 0 ? piece_mb * 1048576 : std::numeric_limits<double>::infinity();
    }
    double bytes() const {  // the input of each rank in a step
        double sum = 0;
        for (const Collective& collective : schedule.collectives) sum += collective.bytes;
        return sum;
    }
    std::size_t collectives() const {
        if (name == "decoupled") return decoupled(schedule.collectives, layers, 1).size();
        std::size_t count = 0;
        for (const Collective& collective : schedule.collectives)
            count += piece_count(collective, piece_bytes());
        return count;
    }
};

class Predictor {
public:
    explicit Predictor(const Options& options)
        : options_(options),
          model_(find_model(options.model)),
          network_(find_network(options.network)),
          compute_(compute_of(model_, options)) {
        if (!options.measured.empty()) measured_.emplace(lines_of(options.measured));
        if (measured_ && measured_->world() != options.world)
            throw std::invalid_argument("--measured: the rows are of a world of " +
                                        std::to_string(measured_->world()) + ", and --world is " +
                                        std::to_string(options.world));
        const auto& schedules = options.schedules;
        const bool decouples =
            std::find(schedules.begin(), schedules.end(), "decoupled") != schedules.end();
        const bool cuts = *std::max_element(options.piece_mbs.begin(), options.piece_mbs.end()) > 0;
        if (!options.save_plan.empty() && (decouples || cuts || options.agreement != "plan"))
            throw std::invalid_argument(
                "--save-plan: a bucket plan gives the order of whole buckets. Leave out decoupled, "
                "--piece-mb and --agreement");
        if (measured_ && decouples)
            throw std::invalid_argument(
                "--measured: the file has only times of allreduces, and --schedule decoupled sends "
                "none");
    }

    // One for each schedule and size of pieces that the options name.
    std::vector<Candidate> candidates(const Settings& settings) const {
        std::vector<Candidate> all;
        const Schedule schedule = find_schedule(model_, settings);
        const std::vector<Layer> layers = layers_of(schedule);
        for (const std::string& name : options_.schedules)
            for (const double piece_mb :
                 name == "first-used" ? options_.piece_mbs : std::vector<double>{0})
                all.push_back({settings, schedule, layers, name, piece_mb});
        return all;
    }

    StepTime step(const Candidate& candidate, int world, bool without_latency = false) const {
        const NextPass next = next_pass(candidate, world, without_latency);
        const std::vector<Collective>& all = candidate.schedule.collectives;
        return play(candidate.name == "decoupled" ? decoupled(all, candidate.layers, world) : all,
                    compute_, cost(world, without_latency), world, processors(), 64, 1, next);
    }

    // The bucket plan that makes libddp send the buckets in this order.
    std::string plan(const Candidate& candidate, int world) const {
        if (candidate.name != "first-used") return candidate.schedule.plan;
        return plan_in_order(
            candidate.schedule.plan,
            first_used_order(candidate.schedule.collectives, compute_, cost(world, false), world,
                             processors(), next_pass(candidate, world, false)));
    }
    double alone() const {
        return compute_.forward_ms + compute_.backward_ms + compute_.optimizer_ms;
    }
    Cluster cluster(int world) const { return {world, options_.ranks_a_host}; }
    double efficiency(const StepTime& time) const { return alone() / time.step; }

    Row row(const Candidate& candidate, int world, const StepTime& time) const {
        Row row;
        row["name"] = "predict";
        row["world"] = world;
        row["hosts"] = cluster(world).hosts();
        const bool plain = options_.schedules == std::vector<std::string>{"finalize"};
        if (!plain) row["schedule"] = candidate.name;
        row["bucket_mb"] = candidate.settings.bucket_mb;
        if (options_.advise) {
            row["first_bucket_mb"] = candidate.settings.first_bucket_mb;
            row["groups"] = candidate.settings.groups;
            row["hook"] = candidate.settings.hook.empty() ? "allreduce" : candidate.settings.hook;
            row["hook_options"] = candidate.settings.hook_options;
        }
        if (!plain) row["piece_mb"] = candidate.piece_mb;
        row["buckets"] = candidate.schedule.buckets;
        row["collectives"] = candidate.collectives();
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
            fixed(time.exposed) + " ms of each step are communication that " +
            (candidate.name == "finalize" ? "no backward pass" : "neither pass") +
            " hides, mostly ";
        if (step(candidate, world, true).exposed < time.exposed / 2)
            return exposed + "latency: " + std::to_string(candidate.collectives()) +
                   " collectives a step. Larger buckets help";
        return exposed + "transfer: " + fixed(candidate.bytes() * 1e-6) +
               " MB from each rank. A faster network, a hook that compresses or a larger batch "
               "helps";
    }

private:
    CostOf cost(int world, bool without_latency) const {
        return [this, ranks = cluster(world), without_latency](const Collective& collective) {
            Cost found = measured_ ? measured_cost(collective)
                                   : cost_of(network_, ranks, collective.kind, collective.bytes);
            if (without_latency) found.latency_ms = 0;
            return found;
        };
    }
    Processors processors() const { return {options_.cores, options_.communication_cores}; }
    NextPass next_pass(const Candidate& candidate, int world, bool without_latency) const {
        NextPass next;
        if (candidate.name != "finalize") next.layers = candidate.layers;
        if (candidate.name == "decoupled") next.order = Order::given;
        if (candidate.name == "first-used") {
            next.order = options_.agreement == "plan" ? Order::planned : Order::first_used;
            next.piece_bytes = candidate.piece_bytes();
            if (options_.agreement == "piece" && !without_latency)
                next.agreement_ms = agreement_ms(cluster(world));
        }
        return next;
    }
    std::vector<Layer> layers_of(const Schedule& schedule) const {
        const std::vector<double> forward = work_shares(model_);
        const auto elements = static_cast<double>(std::max<std::int64_t>(1, element_count(model_)));
        std::vector<Layer> layers;
        for (std::size_t i = 0; i < model_.size(); ++i)
            layers.push_back({schedule.bucket_of[i], forward[i],
                              static_cast<double>(model_[i].count()) / elements});
        return layers;
    }
    double agreement_ms(const Cluster& cluster) const {
        return measured_ ? measured_->allreduce(0).latency_ms
                         : cost_of(network_, cluster, DDP_COLLECTIVE_BARRIER, 0).latency_ms;
    }
    Cost measured_cost(const Collective& collective) const {
        if (collective.kind == DDP_COLLECTIVE_ALLREDUCE)
            return measured_->allreduce(collective.bytes);
        // Sums of shares: each half of what an allreduce of so many bytes does.
        if (collective.kind == DDP_COLLECTIVE_ALL_TO_ALL ||
            collective.kind == DDP_COLLECTIVE_REDUCE_SCATTER) {
            const Cost both = measured_->allreduce(collective.bytes);
            return {both.latency_ms / 2, both.transfer_ms / 2};
        }
        throw std::invalid_argument(
            "--measured: the hook '" + options_.hook +
            "' does not send by allreduce, and the file has only times of allreduces");
    }

    const Options& options_;
    const Model model_;
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
std::string where_it_ends(const Predictor& predictor, const Candidate& best,
                          const std::map<int, StepTime>& times) {
    libddp::TextOut text;
    text << std::setprecision(3);
    const auto bad = std::find_if(times.begin(), times.end(), [&](const auto& item) {
        return predictor.efficiency(item.second) < kGood;
    });
    if (bad != times.begin()) {
        const auto& [world, time] = *std::prev(bad);
        text << "Up to " << world << " ranks the efficiency is at least " << kGood << " ("
             << predictor.efficiency(time) << " with " << world << "). ";
    }
    if (bad != times.end())
        text << "With " << bad->first << " ranks the efficiency is "
             << predictor.efficiency(bad->second) << ": " << predictor.reason(best, bad->first)
             << ". ";
    return text.str();
}

std::string what_is_best(const Candidate& best, const Options& options) {
    libddp::TextOut text;
    if (options.schedules.size() > 1) {
        text << "Of these schedules " << best.name << " is the best, with buckets of "
             << best.settings.bucket_mb << " MiB";
        if (best.piece_mb > 0) text << " in pieces of " << best.piece_mb << " MiB";
        text << ". ";
    } else if (options.bucket_mbs.size() > 1) {
        text << "Of these bucket sizes " << best.settings.bucket_mb << " MiB is the best. ";
    }
    return text.str();
}

// Predicts the bucket sizes and schedules that the options name.
Prediction sweep(const Predictor& predictor, const Options& options) {
    Prediction prediction;
    std::optional<Candidate> best;
    StepTime least;
    for (const double bucket_mb : options.bucket_mbs) {
        Settings settings = options;
        settings.bucket_mb = bucket_mb;
        for (const Candidate& candidate : predictor.candidates(settings)) {
            const StepTime time = predictor.step(candidate, options.world);
            prediction.rows.push_back(predictor.row(candidate, options.world, time));
            if (best && time.step >= least.step) continue;
            best = candidate;
            least = time;
        }
    }
    if (!options.save_plan.empty())
        save_plan(options.save_plan, predictor.plan(*best, options.world));
    libddp::TextOut text;
    text << what_is_best(*best, options);
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

// Predicts the settings that --advise tries.
Prediction search(const Predictor& predictor, const Options& options) {
    Prediction prediction;
    std::vector<Candidate> planned;  // by libddp, with one group
    const auto candidate_of = [&](const Settings& settings) {
        Settings alone = settings;
        alone.groups = 1;
        const auto same = [&](const Candidate& candidate) { return candidate.settings == alone; };
        auto found = std::find_if(planned.begin(), planned.end(), same);
        if (found == planned.end())
            found = planned.insert(found, predictor.candidates(alone).front());
        Candidate candidate = *found;
        candidate.settings = settings;
        candidate.schedule = in_turn(candidate.schedule, settings.groups);
        return candidate;
    };
    const Advice advice =
        advise(predictor.cluster(options.world).hosts(), [&](const Settings& settings) {
            const Candidate candidate = candidate_of(settings);
            const StepTime time = predictor.step(candidate, options.world);
            prediction.rows.push_back(predictor.row(candidate, options.world, time));
            return time;
        });
    for (std::size_t i = 0; i < prediction.rows.size(); ++i) {
        const Tried& tried = advice.tried[i];
        prediction.rows[i]["saving"] =
            rounded(1 - tried.time.step / advice.tried.front().time.step);
        prediction.rows[i]["advised"] = tried.advised;
    }
    if (!options.save_plan.empty())
        save_plan(options.save_plan, predictor.plan(candidate_of(advice.settings), options.world));
    prediction.text = advice.text;
    return prediction;
}

}  // namespace

Prediction predict(const Options& options) {
    const Predictor predictor(options);
    return options.advise ? search(predictor, options) : sweep(predictor, options);
}

}  // namespace bench
