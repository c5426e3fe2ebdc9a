#include "predict/timeline.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

namespace bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMoment = 1e-12;  // milliseconds, against rounding

struct Played {
    double end = 0;  // of the last collective, or of the backward pass if that ends later
    double communication = 0;
};

// One step. Every collective waits for the last rank, so only the slowest rank's backward pass matters. slowest: its time divided by the
// given one.
class Player {
public:
    Player(const std::vector<Collective>& collectives, const Compute& compute, const std::vector<Cost>& costs,
           const Processors& processors, double slowest)
        : collectives_(collectives),
          compute_(compute),
          costs_(costs),
          processors_(processors),
          work_(compute.backward_ms * slowest),
          continuations_(collectives.size()) {
        for (std::size_t i = 0; i < collectives.size(); ++i) {
            links_ = std::max(links_, static_cast<std::size_t>(collectives[i].link) + 1);
            if (collectives[i].after >= 0)
                continuations_.at(static_cast<std::size_t>(collectives[i].after)).push_back(i);
        }
    }

    Played play() {
        Played played;
        double now = 0;
        while (true) {
            release();
            start();
            const double step = until_next_event();
            if (step == kNever) break;
            if (!running_.empty()) played.communication += step;
            advance(step);
            now += step;
        }
        if (ended_ < collectives_.size()) throw std::invalid_argument("a collective waits for one that comes after it");
        played.end = now;
        return played;
    }

private:
    struct Running {
        std::size_t number;
        Cost left;
        bool moves() const { return left.latency_ms <= kMoment; }
    };

    double released_at(const Collective& collective) const {
        if (collective.trigger < 0) return 0;
        // The last share may exceed 1 by what rounding adds.
        return work_ * std::min(1.0, compute_.done[static_cast<std::size_t>(collective.trigger)]);
    }
    // Queues the collectives that are due. Continuations are queued when the collective before them ends.
    void release() {
        for (; next_ < collectives_.size(); ++next_) {
            if (collectives_[next_].after >= 0) continue;
            if (computed_ < released_at(collectives_[next_]) - kMoment) break;
            queue_.insert(next_);
        }
    }
    // The first one of each idle link.
    void start() {
        for (auto at = queue_.begin(); at != queue_.end() && running_.size() < links_;) {
            const int link = collectives_[*at].link;
            const bool busy = std::any_of(running_.begin(), running_.end(), [&](const Running& other) {
                return collectives_[other.number].link == link;
            });
            if (busy) {
                ++at;
                continue;
            }
            running_.push_back({*at, costs_[*at]});
            at = queue_.erase(at);
        }
    }

    double moving() const {
        return static_cast<double>(std::count_if(running_.begin(), running_.end(), std::mem_fn(&Running::moves)));
    }
    bool computing() const { return computed_ < work_; }
    // Cores that the backward pass gets, of the one that it uses. The scheduler gives it and communication half of them each, or less to
    // the one that needs less.
    double cores_of_pass() const {
        const double alone = std::min(1.0, processors_.of_rank);
        if (moving() == 0) return alone;
        return std::min(alone, std::max(processors_.of_rank / 2, processors_.of_rank - processors_.communication));
    }
    double computing_speed() const {
        return processors_.of_rank > 0 ? cores_of_pass() / std::min(1.0, processors_.of_rank) : 1;
    }
    // Of each transfer.
    double moving_speed() const {
        const bool shares = computing() && processors_.of_rank > 0 && processors_.communication > 0;
        const double speed =
            shares ? std::min(1.0, (processors_.of_rank - cores_of_pass()) / processors_.communication) : 1;
        return speed / moving();
    }

    double until_next_event() const {
        double next = kNever;
        if (computing()) {
            const bool more = next_ < collectives_.size();
            const double until = more ? std::min(work_, released_at(collectives_[next_])) : work_;
            next = (until - computed_) / computing_speed();
        }
        for (const Running& running : running_)
            next =
                std::min(next, running.moves() ? running.left.transfer_ms / moving_speed() : running.left.latency_ms);
        return next;
    }

    void advance(double step) {
        const double moved = step * moving_speed();
        if (computing()) computed_ += step * computing_speed();
        if (work_ - computed_ <= kMoment) computed_ = work_;
        std::vector<Running> still;
        for (Running& running : running_) {
            (running.moves() ? running.left.transfer_ms : running.left.latency_ms) -= running.moves() ? moved : step;
            if (running.moves() && running.left.transfer_ms <= kMoment)
                end(running.number);
            else
                still.push_back(running);
        }
        running_ = std::move(still);
    }
    void end(std::size_t number) {
        ++ended_;
        queue_.insert(continuations_[number].begin(), continuations_[number].end());
    }

    const std::vector<Collective>& collectives_;
    const Compute& compute_;
    const std::vector<Cost>& costs_;
    const Processors& processors_;
    const double work_;
    std::vector<std::vector<std::size_t>> continuations_;  // of each collective
    std::size_t links_ = 1;
    std::size_t next_ = 0, ended_ = 0;
    std::set<std::size_t>
        queue_;  // the earliest first, so that a continuation comes before later buckets, as in libddp
    std::vector<Running> running_;
    double computed_ = 0;
};

}  // namespace

StepTime play(const std::vector<Collective>& collectives, const Compute& compute, const CostOf& cost_of, int world,
              const Processors& processors, int steps, std::uint64_t seed) {
    std::vector<Cost> costs;
    for (const Collective& collective : collectives) {
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
        const Played played = Player(collectives, compute, costs, processors, slowest).play();
        sum.step += compute.forward_ms * slowest + played.end + compute.optimizer_ms;
        sum.compute += pass * mean + compute.optimizer_ms;
        sum.waiting += pass * (slowest - mean);
        sum.exposed += std::max(0.0, played.end - compute.backward_ms * slowest);
        sum.communication += played.communication;
    }
    for (double* value : {&sum.step, &sum.compute, &sum.waiting, &sum.exposed, &sum.communication}) *value /= steps;
    return sum;
}

}  // namespace bench
