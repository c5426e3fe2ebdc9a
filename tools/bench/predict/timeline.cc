#include "predict/timeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

namespace bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMoment = 1e-12;  // milliseconds, against rounding

// A part of a collective, which nothing interrupts.
struct Piece {
    std::size_t collective = 0;
    Cost cost;
};

// The messages of a step, and who waits for them. The same in every step.
struct Traffic {
    const std::vector<Collective>& collectives;
    std::vector<Piece> pieces;
    std::vector<std::vector<std::size_t>> pieces_of;      // of each collective
    std::vector<std::vector<std::size_t>> continuations;  // of each collective
    std::vector<Layer> layers;                            // at least one
    // for each collective: the bucket, in the numbers of `layers`, that arrives with it
    std::vector<int> arrival_of;
    std::size_t links = 1, arrivals = 1;
};

Traffic traffic_of(const std::vector<Collective>& collectives, const NextPass& next,
                   const CostOf& cost_of) {
    const std::size_t count = collectives.size();
    Traffic traffic{collectives,
                    {},
                    decltype(Traffic::pieces_of)(count),
                    decltype(Traffic::continuations)(count),
                    next.layers,
                    {}};
    const bool waits_for_all = next.layers.empty();
    if (waits_for_all) traffic.layers.push_back({0, 1, 1});
    for (const Layer& layer : traffic.layers)
        traffic.arrivals = std::max(traffic.arrivals, static_cast<std::size_t>(layer.bucket) + 1);
    for (std::size_t i = 0; i < count; ++i) {
        Collective part = collectives[i];
        const std::size_t parts = piece_count(part, next.piece_bytes);
        part.bytes /= static_cast<double>(parts);
        Cost cost = cost_of(part);
        cost.latency_ms += next.agreement_ms;
        for (std::size_t k = 0; k < parts; ++k) {
            traffic.pieces_of[i].push_back(traffic.pieces.size());
            traffic.pieces.push_back({i, cost});
        }
        if (part.after >= 0)
            traffic.continuations.at(static_cast<std::size_t>(part.after)).push_back(i);
        traffic.links = std::max(traffic.links, static_cast<std::size_t>(part.link) + 1);
        traffic.arrival_of.push_back(waits_for_all ? 0 : part.bucket);
        traffic.arrivals =
            std::max(traffic.arrivals, static_cast<std::size_t>(traffic.arrival_of.back()) + 1);
    }
    return traffic;
}

// The place of each piece in the order in which links prefer them.
using Places = std::vector<std::size_t>;

Places places_of(const std::vector<std::size_t>& pieces) {
    Places places(pieces.size());
    for (std::size_t place = 0; place < pieces.size(); ++place) places[pieces[place]] = place;
    return places;
}

Places as_submitted(const Traffic& traffic) {
    Places places(traffic.pieces.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    return places;
}

// The first layer of each bucket.
std::vector<std::size_t> first_uses(const std::vector<Layer>& layers, std::size_t buckets) {
    std::vector<std::size_t> first(buckets, layers.size());
    for (std::size_t layer = layers.size(); layer-- > 0;)
        first[static_cast<std::size_t>(layers[layer].bucket)] = layer;
    return first;
}

Places as_first_used(const Traffic& traffic) {
    const std::vector<std::size_t> first_use = first_uses(traffic.layers, traffic.arrivals);
    const auto use = [&](std::size_t piece) {
        return first_use[static_cast<std::size_t>(
            traffic.arrival_of[traffic.pieces[piece].collective])];
    };
    std::vector<std::size_t> pieces = as_submitted(traffic);
    std::stable_sort(pieces.begin(), pieces.end(),
                     [&](std::size_t a, std::size_t b) { return use(a) < use(b); });
    return places_of(pieces);
}

// The work of the slowest rank: a backward pass, then for each layer, when its bucket has arrived,
// the update and the next forward pass. While the rank waits for a bucket it updates layers that
// have arrived, as libddp's callback for final gradients does.
class Rank {
public:
    // slowest: its time divided by the given one.
    Rank(const Traffic& traffic, const Compute& compute, double slowest)
        : traffic_(traffic),
          compute_(compute),
          backward_(compute.backward_ms * slowest),
          forward_(compute.forward_ms * slowest),
          pending_(traffic.arrivals),
          updates_(traffic.arrivals) {
        for (const int bucket : traffic.arrival_of) ++pending_[static_cast<std::size_t>(bucket)];
        for (const Layer& layer : traffic.layers)
            updates_[static_cast<std::size_t>(layer.bucket)] += layer.update * compute.optimizer_ms;
        for (std::size_t bucket = 0; bucket < pending_.size(); ++bucket)
            if (pending_[bucket] == 0) arrived_.push_back(bucket);
        begin_layer();
    }

    bool has_gradient(int number) const { return computed_ >= ready_at(number) - kMoment; }
    bool waits() const { return !in_backward() && !in_forward() && !updated(); }
    bool ended() const { return !in_backward() && layer_ == traffic_.layers.size(); }
    // How long it computes until it has this gradient (-1: none is of interest) or does something
    // else.
    double until_event(int gradient) const {
        if (in_forward()) return left_;
        if (!in_backward()) return updated() ? updates_[*updated()] : kNever;
        return (gradient < 0 ? backward_ : std::min(backward_, ready_at(gradient))) - computed_;
    }
    void advance(double work) {
        if (in_backward()) {
            computed_ += work;
            if (backward_ - computed_ <= kMoment) computed_ = backward_;
        } else if (in_forward()) {
            left_ -= work;
        } else if (const auto bucket = updated()) {
            updates_[*bucket] -= work;
        }
        begin_layer();
    }
    void collective_ended(std::size_t collective) {
        const auto bucket = static_cast<std::size_t>(traffic_.arrival_of[collective]);
        if (--pending_[bucket] == 0) arrived_.push_back(bucket);
        begin_layer();
    }

private:
    bool in_backward() const { return computed_ < backward_; }
    double ready_at(int number) const {
        if (number < 0) return 0;
        // The last share may exceed 1 by what rounding adds.
        return backward_ * std::min(1.0, compute_.done[static_cast<std::size_t>(number)]);
    }
    std::size_t bucket() const { return static_cast<std::size_t>(traffic_.layers[layer_].bucket); }
    bool may_run() const { return layer_ < traffic_.layers.size() && pending_[bucket()] == 0; }
    // Passes over what has ended, or takes no time.
    void begin_layer() {
        if (in_backward()) return;
        while (!arrived_.empty() && updates_[arrived_.back()] <= kMoment) arrived_.pop_back();
        while (may_run() && updates_[bucket()] <= kMoment) {
            if (!begun_) left_ = forward_ * traffic_.layers[layer_].forward;
            begun_ = left_ > kMoment;
            if (begun_) return;
            ++layer_;
        }
    }
    bool in_forward() const { return !in_backward() && may_run() && updates_[bucket()] <= kMoment; }
    // The bucket whose parameters it updates.
    std::optional<std::size_t> updated() const {
        if (in_backward() || in_forward()) return {};
        if (may_run()) return bucket();
        return arrived_.empty() ? std::nullopt : std::optional(arrived_.back());
    }

    const Traffic& traffic_;
    const Compute& compute_;
    const double backward_, forward_;
    double computed_ = 0;               // of the backward pass
    std::vector<int> pending_;          // collectives of each bucket
    std::vector<double> updates_;       // what is left of each bucket's
    std::vector<std::size_t> arrived_;  // buckets, perhaps with something to update
    std::size_t layer_ = 0;
    bool begun_ = false;
    double left_ = 0;  // of its forward pass
};

// The links between the ranks. Every collective waits for the last rank, so only the slowest one
// matters.
class Links {
public:
    // strict: a link waits for the piece that has the next place, although it could take others.
    Links(const Traffic& traffic, Places places, bool strict)
        : traffic_(traffic),
          places_(std::move(places)),
          strict_(strict),
          links_(traffic.links),
          left_(traffic.collectives.size()) {
        const std::vector<std::size_t> in_order = places_of(places_);
        for (const std::size_t piece : in_order) link_of(piece).order.push_back(piece);
        for (std::size_t i = 0; i < left_.size(); ++i) left_[i] = traffic.pieces_of[i].size();
    }

    // Takes the collectives that are due, then starts a piece on each idle link.
    void start(const Rank& rank) {
        for (; next_ < left_.size(); ++next_) {
            // queued when the one before it ends
            if (traffic_.collectives[next_].after >= 0) continue;
            if (!rank.has_gradient(traffic_.collectives[next_].trigger)) break;
            queue(next_);
        }
        for (Link& link : links_) {
            if (link.busy || link.queue.empty()) continue;
            const auto [place, piece] = *link.queue.begin();
            if (strict_ && piece != link.order[link.started]) continue;
            link.queue.erase(link.queue.begin());
            link.busy = true;
            ++link.started;
            started_.push_back(piece);
            running_.push_back({piece, traffic_.pieces[piece].cost});
        }
    }

    // The gradient that the next collective waits for; -1: none does.
    int next_trigger() const {
        return next_ < left_.size() ? traffic_.collectives[next_].trigger : -1;
    }
    bool busy() const { return !running_.empty(); }
    std::size_t moving() const {
        return static_cast<std::size_t>(
            std::count_if(running_.begin(), running_.end(), std::mem_fn(&Running::moves)));
    }
    bool ended() const { return ended_ == left_.size(); }

    // speed: of each transfer.
    double until_event(double speed) const {
        double next = kNever;
        for (const Running& running : running_)
            next = std::min(
                next, running.moves() ? running.left.transfer_ms / speed : running.left.latency_ms);
        return next;
    }
    void advance(double step, double speed, Rank& rank) {
        std::vector<Running> still;
        for (Running& running : running_) {
            (running.moves() ? running.left.transfer_ms : running.left.latency_ms) -=
                running.moves() ? step * speed : step;
            if (running.moves() && running.left.transfer_ms <= kMoment)
                end(running.piece, rank);
            else
                still.push_back(running);
        }
        running_ = std::move(still);
    }
    const std::vector<std::size_t>& started() const { return started_; }  // pieces

private:
    struct Running {
        std::size_t piece;
        Cost left;
        bool moves() const { return left.latency_ms <= kMoment; }
    };
    struct Link {
        std::set<std::pair<std::size_t, std::size_t>> queue;  // places and pieces that could start
        std::vector<std::size_t> order;                       // all of its pieces
        std::size_t started = 0;
        bool busy = false;
    };

    Link& link_of(std::size_t piece) {
        return links_[static_cast<std::size_t>(
            traffic_.collectives[traffic_.pieces[piece].collective].link)];
    }
    void queue(std::size_t collective) {
        for (const std::size_t piece : traffic_.pieces_of[collective])
            link_of(piece).queue.emplace(places_[piece], piece);
    }
    void end(std::size_t piece, Rank& rank) {
        link_of(piece).busy = false;
        const std::size_t collective = traffic_.pieces[piece].collective;
        if (--left_[collective] > 0) return;
        ++ended_;
        rank.collective_ended(collective);
        for (const std::size_t follower : traffic_.continuations[collective]) queue(follower);
    }

    const Traffic& traffic_;
    const Places places_;
    const bool strict_;
    std::vector<Link> links_;
    std::vector<std::size_t> left_;  // pieces of each collective
    std::size_t next_ = 0, ended_ = 0;
    std::vector<Running> running_;
    std::vector<std::size_t> started_;
};

// The processors, which computing and communication share.
class Sharing {
public:
    Sharing(const Processors& processors, bool computing, std::size_t moving)
        : processors_(processors), computing_(computing), moving_(static_cast<double>(moving)) {}
    double computing_speed() const {
        return processors_.of_rank > 0 ? cores_of_pass() / std::min(1.0, processors_.of_rank) : 1;
    }
    // The speed of each transfer.
    double moving_speed() const {
        const bool shares = computing_ && processors_.of_rank > 0 && processors_.communication > 0;
        const double speed =
            shares
                ? std::min(1.0, (processors_.of_rank - cores_of_pass()) / processors_.communication)
                : 1;
        return speed / moving_;
    }

private:
    // Cores that computing gets, of the one that it uses. The scheduler gives it and communication
    // half of them each, or less to the one that needs less.
    double cores_of_pass() const {
        const double alone = std::min(1.0, processors_.of_rank);
        if (moving_ == 0) return alone;
        return std::min(alone, std::max(processors_.of_rank / 2,
                                        processors_.of_rank - processors_.communication));
    }

    const Processors& processors_;
    const bool computing_;
    const double moving_;
};

struct Played {
    double end = 0;
    double communication = 0;
    std::vector<std::size_t> started;  // pieces, in order
};

Played play_step(const Traffic& traffic, const Compute& compute, const Processors& processors,
                 double slowest, const Places& places, bool strict) {
    Rank rank(traffic, compute, slowest);
    Links links(traffic, places, strict);
    Played played;
    while (true) {
        links.start(rank);
        const Sharing sharing(processors, !rank.waits(), links.moving());
        const double computing = rank.until_event(links.next_trigger()) / sharing.computing_speed();
        const double step = std::min(computing, links.until_event(sharing.moving_speed()));
        if (step == kNever) break;
        if (links.busy()) played.communication += step;
        rank.advance(step * sharing.computing_speed());
        links.advance(step, sharing.moving_speed(), rank);
        played.end += step;
    }
    if (!links.ended() || !rank.ended())
        throw std::invalid_argument("a collective waits for one that comes after it");
    played.started = links.started();
    return played;
}

// The order in which first_used starts pieces, for a step without jitter.
std::vector<std::size_t> planned_order(const Traffic& traffic, const Compute& compute,
                                       const Processors& processors, int world) {
    const double slowest = 1 + (world > 1 ? compute.straggler : 0);
    return play_step(traffic, compute, processors, slowest, as_first_used(traffic), false).started;
}

}  // namespace

std::size_t piece_count(const Collective& collective, double piece_bytes) {
    return static_cast<std::size_t>(std::max(1.0, std::ceil(collective.bytes / piece_bytes)));
}

std::vector<Collective> decoupled(const std::vector<Collective>& collectives,
                                  const std::vector<Layer>& layers, int world) {
    std::vector<Collective> parts = collectives, gathers;
    int buckets = 0;
    for (const Layer& layer : layers) buckets = std::max(buckets, layer.bucket + 1);
    std::vector<int> last(static_cast<std::size_t>(buckets), -1);
    for (std::size_t i = 0; i < parts.size(); ++i)
        last.at(static_cast<std::size_t>(parts[i].bucket)) = static_cast<int>(i);
    for (const int i : last) {
        if (i < 0 || parts[static_cast<std::size_t>(i)].kind != DDP_COLLECTIVE_ALLREDUCE) continue;
        Collective& reduce = parts[static_cast<std::size_t>(i)];
        reduce.kind = DDP_COLLECTIVE_REDUCE_SCATTER;
        gathers.push_back(reduce);
        gathers.back().kind = DDP_COLLECTIVE_ALLGATHER;
        gathers.back().bytes = reduce.bytes / world;
        gathers.back().after = i;
    }
    const std::vector<std::size_t> use = first_uses(layers, last.size());
    std::stable_sort(gathers.begin(), gathers.end(), [&](const Collective& a, const Collective& b) {
        return use[static_cast<std::size_t>(a.bucket)] < use[static_cast<std::size_t>(b.bucket)];
    });
    parts.insert(parts.end(), gathers.begin(), gathers.end());
    return parts;
}

StepTime play(const std::vector<Collective>& collectives, const Compute& compute,
              const CostOf& cost_of, int world, const Processors& processors, int steps,
              std::uint64_t seed, const NextPass& next) {
    for (const Collective& collective : collectives)
        if (collective.trigger >= static_cast<int>(compute.done.size()))
            throw std::invalid_argument(
                "a collective waits for a gradient that the backward pass does not have");
    const Traffic traffic = traffic_of(collectives, next, cost_of);
    Places places = next.order == Order::first_used ? as_first_used(traffic)
                    : next.order == Order::planned
                        ? places_of(planned_order(traffic, compute, processors, world))
                        : as_submitted(traffic);
    const bool strict = next.order == Order::given || next.order == Order::planned;
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
        const Played played = play_step(traffic, compute, processors, slowest, places, strict);
        sum.step += played.end;
        sum.compute += pass * mean + compute.optimizer_ms;
        sum.waiting += pass * (slowest - mean);
        sum.exposed += std::max(0.0, played.end - pass * slowest - compute.optimizer_ms);
        sum.communication += played.communication;
    }
    for (double* value : {&sum.step, &sum.compute, &sum.waiting, &sum.exposed, &sum.communication})
        *value /= steps;
    return sum;
}

std::vector<int> first_used_order(const std::vector<Collective>& collectives,
                                  const Compute& compute, const CostOf& cost_of, int world,
                                  const Processors& processors, const NextPass& next) {
    const Traffic traffic = traffic_of(collectives, next, cost_of);
    std::vector<int> order;
    for (const std::size_t piece : planned_order(traffic, compute, processors, world)) {
        const int bucket = collectives[traffic.pieces[piece].collective].bucket;
        if (std::find(order.begin(), order.end(), bucket) == order.end()) order.push_back(bucket);
    }
    return order;
}

}  // namespace bench
