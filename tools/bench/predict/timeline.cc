#include "predict/timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

namespace bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMoment = 1e-12;  // milliseconds, against rounding

enum class State { waits, queued, starts, moves, done };

struct Played {
    double end = 0;  // of the last collective, or of the backward pass if that ends later
    double communication = 0;
};

// One step. Every collective waits for the last rank, so only the slowest rank's backward pass matters. slowest: its time divided by the
// given one.
class Step {
public:
    Step(const Schedule& schedule, const Compute& compute, const std::vector<Cost>& costs, const Processors& processors,
         double slowest)
        : schedule_(schedule),
          compute_(compute),
          processors_(processors),
          work_(compute.backward_ms * slowest),
          states_(schedule.size(), State::waits) {
        for (const Cost& cost : costs) left_.push_back(cost);
    }

    Played run() {
        Played played;
        while (true) {
            release();
            const double speed = computing_speed();
            const double step = until_next_event(speed);
            if (step == kNever) break;
            if (std::any_of(states_.begin(), states_.end(), on_its_way)) played.communication += step;
            advance(step, speed);
            now_ += step;
        }
        if (std::any_of(states_.begin(), states_.end(), [](State state) { return state != State::done; }))
            throw std::invalid_argument("a collective waits for one that comes after it");
        played.end = now_;
        return played;
    }

private:
    static bool on_its_way(State state) { return state == State::starts || state == State::moves; }

    double released_at(std::size_t i) const {
        if (schedule_[i].trigger < 0) return 0;
        // The last share may exceed 1 by what rounding adds.
        return work_ * std::min(1.0, compute_.done[static_cast<std::size_t>(schedule_[i].trigger)]);
    }
    // Queues the collectives that are due, and starts the first one of each idle link.
    void release() {
        for (std::size_t i = 0; i < schedule_.size(); ++i) {
            if (states_[i] != State::waits || computed_ < released_at(i) - kMoment) continue;
            const int after = schedule_[i].after;
            if (after >= 0 && states_[static_cast<std::size_t>(after)] != State::done) continue;
            states_[i] = State::queued;
            // A collective that continues another one comes first, as in libddp.
            queue_.insert(std::lower_bound(queue_.begin(), queue_.end(), i), i);
        }
        for (auto at = queue_.begin(); at != queue_.end();) {
            const int link = schedule_[*at].link;
            const bool busy = std::any_of(busy_.begin(), busy_.end(), [&](int other) { return other == link; });
            if (busy) {
                ++at;
                continue;
            }
            states_[*at] = State::starts;
            busy_.push_back(link);
            at = queue_.erase(at);
        }
    }

    std::size_t moving() const {
        return static_cast<std::size_t>(std::count(states_.begin(), states_.end(), State::moves));
    }
    bool computing() const { return computed_ < work_ - kMoment; }
    // Cores that the backward pass gets, of the one that it uses. The scheduler gives it and communication half of them each, or less to
    // the one that needs less.
    double cores_of_pass() const {
        const double alone = std::min(1.0, processors_.of_rank);
        if (moving() == 0) return alone;
        return std::min(alone, std::max(processors_.of_rank / 2, processors_.of_rank - processors_.communication));
    }
    double computing_speed() const {
        if (!computing() || processors_.of_rank <= 0) return 1;
        return cores_of_pass() / std::min(1.0, processors_.of_rank);
    }
    double moving_speed() const {
        if (!computing() || processors_.of_rank <= 0 || processors_.communication <= 0) return 1;
        return std::min(1.0, (processors_.of_rank - cores_of_pass()) / processors_.communication);
    }

    double until_next_event(double speed) const {
        double next = kNever;
        if (computing()) {
            next = (work_ - computed_) / speed;
            for (std::size_t i = 0; i < schedule_.size(); ++i)
                if (states_[i] == State::waits && released_at(i) > computed_ + kMoment)
                    next = std::min(next, (released_at(i) - computed_) / speed);
        }
        const double share = moving_speed() / static_cast<double>(std::max<std::size_t>(1, moving()));
        for (std::size_t i = 0; i < schedule_.size(); ++i) {
            if (states_[i] == State::starts) next = std::min(next, left_[i].latency_ms);
            if (states_[i] == State::moves) next = std::min(next, left_[i].transfer_ms / share);
        }
        return next;
    }

    void advance(double step, double speed) {
        const double share = moving_speed() / static_cast<double>(std::max<std::size_t>(1, moving()));
        if (computing()) computed_ = std::min(work_, computed_ + step * speed);
        if (work_ - computed_ <= kMoment) computed_ = work_;
        for (std::size_t i = 0; i < schedule_.size(); ++i) {
            if (states_[i] == State::moves) {
                left_[i].transfer_ms -= step * share;
                if (left_[i].transfer_ms <= kMoment) end(i);
            } else if (states_[i] == State::starts) {
                left_[i].latency_ms -= step;
                if (left_[i].latency_ms <= kMoment) states_[i] = State::moves;
            }
        }
    }
    void end(std::size_t i) {
        states_[i] = State::done;
        busy_.erase(std::find(busy_.begin(), busy_.end(), schedule_[i].link));
    }

    const Schedule& schedule_;
    const Compute& compute_;
    const Processors& processors_;
    const double work_;
    std::vector<State> states_;
    std::vector<Cost> left_;
    std::vector<std::size_t> queue_;  // in order
    std::vector<int> busy_;           // links
    double now_ = 0, computed_ = 0;
};

}  // namespace

StepTime play(const Schedule& schedule, const Compute& compute, const CostOf& cost_of, int world,
              const Processors& processors, int steps, std::uint64_t seed) {
    std::vector<Cost> costs;
    for (const Collective& collective : schedule) {
        if (collective.trigger >= static_cast<int>(compute.done.size()))
            throw std::invalid_argument("a collective waits for a gradient that the backward pass does not have");
        costs.push_back(cost_of(collective));
    }
    if (compute.jitter <= 0) steps = 1;
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(0, compute.jitter > 0 ? compute.jitter : 1);
    const double pass = compute.forward_ms + compute.backward_ms;
    StepTime sum;
    for (int step = 0; step < steps; ++step) {
        double slowest = 0, all = 0;
        for (int rank = 0; rank < world; ++rank) {
            double factor = compute.jitter > 0 ? std::max(0.1, 1 + normal(random)) : 1;
            if (rank == 1) factor += compute.straggler;
            slowest = std::max(slowest, factor);
            all += factor;
        }
        const double mean = all / world;
        const Played played = Step(schedule, compute, costs, processors, slowest).run();
        sum.step += compute.forward_ms * slowest + played.end + compute.optimizer_ms;
        sum.compute += pass * mean + compute.optimizer_ms;
        sum.waiting += pass * (slowest - mean);
        sum.exposed += played.end - compute.backward_ms * slowest;
        sum.communication += played.communication;
    }
    for (double* value : {&sum.step, &sum.compute, &sum.waiting, &sum.exposed, &sum.communication}) *value /= steps;
    return sum;
}

}  // namespace bench
