// ddp-bench predict: the network and the timeline against what can be worked out by hand, the
// advice against trying everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "predict/advice.h"
#include "predict/network.h"
#include "predict/timeline.h"

using testing::HasSubstr;
using testing::Not;

namespace bench {
namespace {

constexpr double kMs = 1e-9;

// A backward pass whose gradients come after equal times.
Compute even(int gradients, double backward_ms) {
    Compute compute;
    compute.backward_ms = backward_ms;
    for (int i = 1; i <= gradients; ++i) compute.done.push_back(static_cast<double>(i) / gradients);
    return compute;
}

Collective after_gradient(int trigger, int link = 0) {
    Collective collective;
    collective.bucket = collective.trigger = trigger;
    collective.link = link;
    return collective;
}

CostOf always(double latency_ms, double transfer_ms) {
    return [=](const Collective&) { return Cost{latency_ms, transfer_ms}; };
}

TEST(Timeline, CollectivesFollowTheBackwardPass) {
    const std::vector<Collective> schedule = {after_gradient(0), after_gradient(1)};
    const StepTime time = play(schedule, even(2, 10), always(1, 2), 2);
    EXPECT_NEAR(time.step, 13, kMs);  // the first is hidden behind the second gradient
    EXPECT_NEAR(time.exposed, 3, kMs);
    EXPECT_NEAR(time.communication, 6, kMs);
    EXPECT_NEAR(time.compute, 10, kMs);
    EXPECT_NEAR(time.waiting, 0, kMs);
}

TEST(Timeline, TheForwardPassAndTheOptimizerHideNothing) {
    Compute compute = even(1, 10);
    compute.forward_ms = 5;
    compute.optimizer_ms = 2;
    EXPECT_NEAR(play({after_gradient(0)}, compute, always(0, 3), 2).step, 20, kMs);
}

TEST(Timeline, CollectivesOfOneLinkQueueUp) {
    const std::vector<Collective> schedule = {after_gradient(0), after_gradient(0),
                                              after_gradient(0)};
    EXPECT_NEAR(play(schedule, even(1, 1), always(1, 2), 2).step, 1 + 3 * 3, kMs);
}

TEST(Timeline, LinksShareTheNetworkAndNotTheLatency) {
    const std::vector<Collective> schedule = {after_gradient(0, 0), after_gradient(0, 1)};
    EXPECT_NEAR(play(schedule, even(1, 1), always(5, 2), 2).step, 1 + 5 + 4, kMs);
}

TEST(Timeline, TheSecondCollectiveOfAHookWaitsForTheFirst) {
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(0, 1)};
    schedule[1].after = 0;
    EXPECT_NEAR(play(schedule, even(1, 1), always(1, 2), 2).step, 1 + 2 * 3, kMs);
}

TEST(Timeline, AStepWithoutCollectivesComputes) {
    EXPECT_NEAR(play({}, even(3, 7), always(1, 1), 4).step, 7, kMs);
    EXPECT_NEAR(play({after_gradient(0)}, even(1, 7), always(0, 0), 4).step, 7, kMs);
}

TEST(Timeline, AllWaitForAStraggler) {
    Compute compute = even(1, 10);
    compute.straggler = 0.5;
    const StepTime time = play({after_gradient(0)}, compute, always(0, 1), 2);
    EXPECT_NEAR(time.step, 16, kMs);
    EXPECT_NEAR(time.compute, 12.5, kMs);
    EXPECT_NEAR(time.waiting, 2.5, kMs);
}

TEST(Timeline, JitterCostsMoreWithMoreRanks) {
    Compute compute = even(1, 100);
    compute.jitter = 0.05;
    const auto waiting = [&](int world) {
        return play({}, compute, always(0, 0), world, {}, 400).waiting;
    };
    // the expected greatest of two normal numbers
    EXPECT_NEAR(waiting(2), 100 * 0.05 * 0.564, 0.5);
    EXPECT_NEAR(waiting(1024), 100 * 0.05 * 3.24, 0.5);
    EXPECT_EQ(play({}, compute, always(0, 0), 8, {}, 10, 7).step,
              play({}, compute, always(0, 0), 8, {}, 10, 7).step);
}

TEST(Timeline, ProcessorsAreShared) {
    const std::vector<Collective> schedule = {after_gradient(0)};
    const Compute compute = even(2, 20);
    // Communication wants half a core and gets it; the other half of the pass then runs at half its
    // speed.
    EXPECT_NEAR(play(schedule, compute, always(0, 5), 2, {1, 0.5}).step, 10 + 5 + 7.5, kMs);
    // It wants a whole one and gets half, for as long as there is something to compute.
    EXPECT_NEAR(play(schedule, compute, always(0, 5), 2, {1, 1}).step, 10 + 10 + 5, kMs);
    EXPECT_NEAR(play(schedule, compute, always(0, 5), 2, {2, 1}).step, 20, kMs);
}

TEST(Timeline, ProcessorsNeverMakeThePassFaster) {
    const std::vector<Collective> schedule = {after_gradient(0)};
    EXPECT_NEAR(play(schedule, even(1, 20), always(0, 5), 2, {4, 3.5}).step, 25, kMs);
    EXPECT_NEAR(play(schedule, even(2, 20), always(0, 5), 2, {4, 3.5}).step, 20, kMs);
    EXPECT_NEAR(play(schedule, even(1, 20), always(0, 5), 2, {0.5, 0.25}).step, 25, kMs);
}

TEST(Timeline, RoundingLosesNoCollective) {
    Compute compute;
    compute.backward_ms = 2000;
    double done = 0;
    for (int i = 0; i < 100; ++i) compute.done.push_back(done += 0.01);
    ASSERT_GT(done, 1);
    EXPECT_NEAR(play({after_gradient(99)}, compute, always(1, 2), 2).step, 2003, kMs);
}

TEST(Timeline, AContinuationComesBeforeLaterBuckets) {
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(0), after_gradient(0),
                                        after_gradient(0, 1)};
    schedule[1].after = 0;
    schedule[3].after = 1;
    EXPECT_NEAR(play(schedule, even(1, 1), always(1, 0), 2).step, 4, kMs);
}

TEST(Timeline, AnUnknownGradientIsRefused) {
    EXPECT_THROW(play({after_gradient(1)}, even(1, 1), always(0, 1), 2), std::invalid_argument);
    std::vector<Collective> circle = {after_gradient(0)};
    circle[0].after = 0;
    EXPECT_THROW(play(circle, even(1, 1), always(0, 1), 2), std::invalid_argument);
}

// So many layers, of which each has its own bucket and an equal share of the passes. Buckets are
// numbered in the order of the backward pass.
std::vector<Layer> layers_with_buckets(int count) {
    std::vector<Layer> layers;
    for (int i = 0; i < count; ++i) layers.push_back({count - 1 - i, 1.0 / count, 1.0 / count});
    return layers;
}

StepTime play_next(const std::vector<Collective>& schedule, const Compute& compute,
                   const CostOf& cost, const NextPass& next) {
    return play(schedule, compute, cost, 2, {}, 64, 1, next);
}

CostOf by_size(double latency_ms, double ms_a_byte) {
    return [=](const Collective& collective) {
        return Cost{latency_ms, ms_a_byte * collective.bytes};
    };
}

// Two layers of 5 ms each way. Their buckets of 6 bytes are ready after 5 and 10 ms.
struct TwoLayers {
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(1)};
    Compute compute = even(2, 10);
    NextPass next;
    TwoLayers() {
        for (Collective& collective : schedule) collective.bytes = 6;
        compute.forward_ms = 10;
        next.layers = layers_with_buckets(2);
    }
    double step(const CostOf& cost) const { return play_next(schedule, compute, cost, next).step; }
};

TEST(NextPass, InReadyOrderTheFirstLayerComesLast) {
    TwoLayers two;
    EXPECT_NEAR(two.step(by_size(0, 1)), 17 + 10, kMs);  // the buckets come at 11 and 17
    two.next.layers = {};
    EXPECT_NEAR(two.step(by_size(0, 1)), 17 + 10, kMs);
}

TEST(NextPass, PiecesOfTheFirstLayerOvertake) {
    TwoLayers two;
    two.next.order = Order::first_used;
    EXPECT_NEAR(two.step(by_size(0, 1)), 27, kMs);  // whole buckets do not overtake
    two.next.piece_bytes = 1;
    // 5 pieces, the first layer from 10 to 16, the last piece to 17
    EXPECT_NEAR(two.step(by_size(0, 1)), 26, kMs);
    two.next.order = Order::planned;
    EXPECT_NEAR(two.step(by_size(0, 1)), 26, kMs);
}

TEST(NextPass, APlanHasTheBucketsInTheOrderInWhichTheyStart) {
    // The last of three layers has a bucket that is sent from 2 to 10; then the others are ready.
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(1), after_gradient(2)};
    NextPass next;
    next.layers = layers_with_buckets(3);
    EXPECT_EQ(first_used_order(schedule, even(3, 6), always(0, 8), 2, {}, next),
              (std::vector<int>{0, 2, 1}));
    EXPECT_EQ(first_used_order(schedule, even(3, 6), always(0, 1), 2, {}, next),
              (std::vector<int>{0, 1, 2}));
}

TEST(NextPass, EachPieceCostsItsLatencyAndTheAgreement) {
    TwoLayers two;
    two.next.order = Order::first_used;
    two.next.piece_bytes = 3;  // two pieces of 3 + 2 ms each
    EXPECT_NEAR(two.step(by_size(2, 1)), 10 + 10 + 10, kMs);
    // the first piece from 5 to 11, then the first layer's to 23, the last to 29
    two.next.agreement_ms = 1;
    EXPECT_NEAR(two.step(by_size(2, 1)), 29 + 5, kMs);
}

TEST(NextPass, UpdatesFillTheWaiting) {
    TwoLayers two;
    two.compute.optimizer_ms = 4;
    // The second layer's bucket comes at 11, and is updated until 13; the first layer's comes at
    // 17.
    EXPECT_NEAR(two.step(by_size(0, 1)), 17 + 2 + 10, kMs);
    two.next.layers = {};
    EXPECT_NEAR(two.step(by_size(0, 1)), 17 + 4 + 10, kMs);
}

TEST(NextPass, APlanThatWasMadeWithoutJitterHoldsALinkUp) {
    // The plan says: both pieces of the last layer, then the first layer's. A straggler changes
    // nothing, for it is planned for.
    TwoLayers two;
    two.next.order = Order::planned;
    two.next.piece_bytes = 3;
    const double calm = two.step(by_size(0, 1));
    two.compute.straggler = 1;
    EXPECT_NEAR(two.step(by_size(0, 1)), 20 + 6 + 20, kMs);
    two.compute.straggler = 0;
    two.compute.jitter = 0.1;
    EXPECT_GT(two.step(by_size(0, 1)), calm);
}

TEST(NextPass, DecoupledGathersInTheOrderOfUse) {
    TwoLayers two;
    two.schedule = decoupled(two.schedule, two.next.layers, 2);
    ASSERT_EQ(two.schedule.size(), 4u);
    EXPECT_EQ(two.schedule[0].kind, DDP_COLLECTIVE_REDUCE_SCATTER);
    EXPECT_EQ(two.schedule[2].kind, DDP_COLLECTIVE_ALLGATHER);
    EXPECT_EQ(two.schedule[2].bucket, 1);
    EXPECT_EQ(two.schedule[2].after, 1);
    EXPECT_NEAR(two.schedule[2].bytes, 3, kMs);
    two.next.order = Order::given;
    // Reduced from 5 to 8 and from 10 to 13, gathered until 16 and 19.
    EXPECT_NEAR(two.step(always(0, 3)), 16 + 10, kMs);
}

TEST(NextPass, OnlyTheLastAllreduceOfABucketIsDecoupled) {
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(0), after_gradient(1)};
    schedule[1].after = 0;
    schedule[2].kind = DDP_COLLECTIVE_ALLGATHER;
    schedule[2].bucket = 1;
    const auto parts = decoupled(schedule, layers_with_buckets(2), 4);
    ASSERT_EQ(parts.size(), 4u);
    EXPECT_EQ(parts[0].kind, DDP_COLLECTIVE_ALLREDUCE);
    EXPECT_EQ(parts[1].kind, DDP_COLLECTIVE_REDUCE_SCATTER);
    EXPECT_EQ(parts[3].after, 1);
}

// A step whose times are whole milliseconds, on one link: each layer has a bucket, of so many
// pieces.
struct Case {
    // of each layer, in the order of the forward pass
    std::vector<int> backward, forward, update, pieces;
    int piece_ms = 1;
    bool first_used = false;
};

// Goes through it millisecond by millisecond.
int plainly(const Case& c) {
    const int count = static_cast<int>(c.backward.size());
    std::vector<int> left = c.pieces, update = c.update, forward = c.forward,
                     ready(c.backward.size());
    int backward = 0;
    for (int layer = count; layer-- > 0;)
        ready[static_cast<std::size_t>(layer)] = backward +=
            c.backward[static_cast<std::size_t>(layer)];
    int sending = -1, until = 0, now = 0;
    for (std::size_t layer = 0; layer < left.size(); ++now) {
        if (sending >= 0 && now == until) {
            --left[static_cast<std::size_t>(sending)];
            sending = -1;
        }
        for (int i = 0; i < count && sending < 0; ++i) {
            const auto at = static_cast<std::size_t>(c.first_used ? i : count - 1 - i);
            if (left[at] > 0 && ready[at] <= now)
                sending = static_cast<int>(at), until = now + c.piece_ms;
        }
        if (now < backward) continue;
        if (left[layer] == 0) {
            --(update[layer] > 0 ? update[layer] : forward[layer]);
            if (update[layer] == 0 && forward[layer] == 0) ++layer;
            continue;
        }
        for (std::size_t other = 0; other < left.size(); ++other) {
            if (left[other] > 0 || update[other] == 0) continue;
            --update[other];
            break;
        }
    }
    return now;
}

double simulated(const Case& c, Order order) {
    Compute compute;
    NextPass next;
    next.order = order;
    next.piece_bytes = 1;
    const auto sum = [](const std::vector<int>& values) {
        int all = 0;
        for (const int value : values) all += value;
        return static_cast<double>(all);
    };
    compute.backward_ms = sum(c.backward);
    compute.forward_ms = sum(c.forward);
    compute.optimizer_ms = sum(c.update);
    std::vector<Collective> schedule;
    double done = 0;
    for (std::size_t layer = c.backward.size(); layer-- > 0;) {
        compute.done.push_back((done += c.backward[layer]) / compute.backward_ms);
        schedule.push_back(after_gradient(static_cast<int>(schedule.size())));
        schedule.back().bytes = c.pieces[layer];
    }
    for (std::size_t layer = 0; layer < c.forward.size(); ++layer)
        next.layers.push_back(
            {static_cast<int>(c.forward.size() - 1 - layer), c.forward[layer] / compute.forward_ms,
             compute.optimizer_ms > 0 ? c.update[layer] / compute.optimizer_ms : 0});
    return play_next(schedule, compute, by_size(0, c.piece_ms), next).step;
}

Case random_case(std::mt19937& random, bool updates) {
    const auto number = [&](int from, int to) {
        return std::uniform_int_distribution<int>(from, to)(random);
    };
    Case c;
    c.piece_ms = number(1, 4);
    for (int layer = number(1, 6); layer-- > 0;) {
        c.backward.push_back(number(1, 9));
        c.forward.push_back(number(1, 9));
        c.update.push_back(updates ? number(0, 4) : 0);
        c.pieces.push_back(number(1, 7));
    }
    return c;
}

TEST(NextPass, IsThatOfAPlainSimulation) {
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
        Case c = random_case(random, i % 2 == 0);
        c.first_used = i % 4 < 2;
        EXPECT_NEAR(simulated(c, c.first_used ? Order::first_used : Order::ready), plainly(c), 1e-6)
            << "case " << i;
        if (c.first_used) {
            EXPECT_NEAR(simulated(c, Order::planned), plainly(c), 1e-6) << "case " << i;
        }
    }
}

// Without latency the network is busy for the same time in every order, and the first layer's
// bucket is the last one that is ready.
TEST(NextPass, FirstUsedFirstIsNeverWorseWithoutLatency) {
    std::mt19937 random(8);
    int better = 0;
    for (int i = 0; i < 1000; ++i) {
        const Case c = random_case(random, false);
        const double ready = simulated(c, Order::ready),
                     first_used = simulated(c, Order::first_used);
        EXPECT_LE(first_used, ready + kMs) << "case " << i;
        better += first_used < ready - kMs;
    }
    EXPECT_GT(better, 100);
}

TEST(NextPass, AllOrdersAreAlikeIfTheBackwardPassHidesAllButTheLastBucket) {
    std::mt19937 random(9);
    for (int i = 0; i < 200; ++i) {
        Case c = random_case(random, false);
        for (std::size_t layer = 0; layer + 1 < c.backward.size(); ++layer)
            c.backward[layer] = std::max(c.backward[layer], c.piece_ms * c.pieces[layer + 1]);
        const double least = simulated(c, Order::first_used);
        EXPECT_NEAR(simulated(c, Order::ready), least, 1e-6) << "case " << i;
    }
}

TEST(Network, AllreduceMovesEachByteTwice) {
    const Network network = find_network("25gbit:host-gb-s=1:latency-us=10:message-us=1");
    const auto cost = [&](int world, int ranks_a_host, ddp_collective_kind kind) {
        return cost_of(network, {world, ranks_a_host}, kind, 1e6);
    };
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLREDUCE).transfer_ms, 2 * 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLREDUCE).latency_ms, 2 * 13e-3, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_REDUCE_SCATTER).transfer_ms, 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLGATHER).transfer_ms, 4 * 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALL_TO_ALL).transfer_ms, 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_BROADCAST).transfer_ms, 1, kMs);
    EXPECT_NEAR(cost(1, 1, DDP_COLLECTIVE_ALLREDUCE).all(), 0, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_BARRIER).transfer_ms, 0, kMs);
    // Among 1024 hosts the logarithm counts, not their number.
    EXPECT_NEAR(cost(1024, 1, DDP_COLLECTIVE_ALLREDUCE).latency_ms, 2 * 10 * 10e-3, kMs);
}

TEST(Network, RanksOfAHostShareItsLink) {
    const Network network = find_network("10gbit:local-gb-s=2:host-gb-s=1:local-latency-us=5");
    const Cost one = cost_of(network, {2, 1}, DDP_COLLECTIVE_ALLREDUCE, 1e6);
    const Cost eight = cost_of(network, {16, 8}, DDP_COLLECTIVE_ALLREDUCE, 1e6);
    EXPECT_NEAR(eight.transfer_ms - one.transfer_ms, 0.5, kMs);
    EXPECT_NEAR(eight.latency_ms - one.latency_ms, 5e-3, kMs);
    EXPECT_NEAR(cost_of(network, {4, 8}, DDP_COLLECTIVE_ALLREDUCE, 1e6).transfer_ms, 0.5, kMs);
}

TEST(Network, WhatIsWrongWithANameIsSaid) {
    for (const char* text :
         {"", "26gbit", "25gbit:", "25gbit:speed=1", "25gbit:host-gb-s=", "25gbit:host-gb-s=0",
          "25gbit:host-gb-s=fast", "25gbit:latency-us=nan"})
        EXPECT_THROW(find_network(text), std::invalid_argument) << text;
}

TEST(Measured, SizesBetweenAreOnALine) {
    const Measured measured({R"({"name":"allreduce","world":2,"bytes":1000,"median_ms":1})",
                             R"({"name":"allreduce","world":2,"bytes":3000,"median_ms":2})"});
    EXPECT_EQ(measured.world(), 2);
    EXPECT_NEAR(measured.allreduce(2000).all(), 1.5, kMs);
    EXPECT_NEAR(measured.allreduce(5000).all(), 3, kMs);
    EXPECT_NEAR(measured.allreduce(1).all(), 0.5005, kMs);
    EXPECT_NEAR(measured.allreduce(3000).latency_ms, 0.5, kMs);
    EXPECT_NEAR(measured.allreduce(500).all(), 0.75, kMs);
}

TEST(Measured, NoiseDoesNotMakeLargerMessagesFaster) {
    const Measured measured({R"({"name":"allreduce","world":2,"bytes":1000,"median_ms":5})",
                             R"({"name":"allreduce","world":2,"bytes":2000,"median_ms":4})"});
    EXPECT_NEAR(measured.allreduce(9000).all(), 5, kMs);
    EXPECT_NEAR(measured.allreduce(10).all(), 5, kMs);
}

TEST(Measured, WhatIsNoRowIsRefused) {
    const std::string good = R"({"name":"allreduce","world":2,"bytes":1,"median_ms":1})";
    for (const std::string& other :
         {good, std::string("{}"), std::string("no JSON"), std::string("[1]"),
          std::string(R"({"name":"allreduce","world":3,"bytes":2,"median_ms":1})"),
          std::string(R"({"name":"replay","world":2,"bytes":2,"median_ms":1})"),
          std::string(R"({"name":"allreduce","world":"2","bytes":2,"median_ms":1})"),
          std::string(R"({"name":"allreduce","world":2,"bytes":2,"median_ms":-1})")})
        EXPECT_THROW(Measured({good, other}), std::invalid_argument) << other;
    EXPECT_THROW(Measured({good}), std::invalid_argument);
    EXPECT_THROW(Measured({}), std::invalid_argument);
}

// Equal gradients in buckets as libddp cuts them.
struct Job {
    int gradients = 80;
    double mb = 1;  // of each gradient
    double backward_ms = 100;
    Network network = find_network("10gbit");
    Cluster cluster{16, 1};

    std::vector<Collective> collectives(const Settings& settings) const {
        std::vector<Collective> all;
        double filled = 0;
        for (int i = 0; i < gradients; ++i) {
            filled += mb;
            if (filled < (all.empty() ? settings.first_bucket_mb : settings.bucket_mb) &&
                i + 1 < gradients)
                continue;
            all.push_back(after_gradient(i, static_cast<int>(all.size() % settings.groups)));
            all.back().bytes = filled * 1048576 /
                               (settings.hook == "fp16"       ? 2
                                : settings.hook == "quantize" ? 4
                                : settings.hook == "powersgd" ? 50
                                                              : 1);
            filled = 0;
        }
        return all;
    }
    StepTime step(const Settings& settings) const {
        Compute compute = even(gradients, backward_ms);
        compute.forward_ms = backward_ms / 2;
        const auto cost = [&](const Collective& collective) {
            return cost_of(network, cluster, collective.kind, collective.bytes);
        };
        return play(collectives(settings), compute, cost, cluster.world);
    }
    Advice advice() const {
        return advise(cluster.hosts(), [this](const Settings& settings) { return step(settings); });
    }
    double saving(const Settings& from, const Settings& to) const {
        return 1 - step(to).step / step(from).step;
    }
};

Job random_job(std::mt19937& random) {
    const auto number = [&](double from, double to) {
        return std::exp(
            std::uniform_real_distribution<double>(std::log(from), std::log(to))(random));
    };
    Job job;
    job.gradients = static_cast<int>(number(5, 200));
    job.mb = number(0.05, 10);
    job.backward_ms = number(10, 1000);
    job.network.latency_us = number(1, 5000);
    job.network.host_gb_s = number(0.1, 20);
    job.cluster = {static_cast<int>(number(2, 300)), static_cast<int>(number(1, 9))};
    return job;
}

// The shortest step of all combinations of the values that the search tried, without a hook.
double shortest(const Job& job, const Advice& advice) {
    std::set<double> caps, first_caps;
    std::set<unsigned> groups;
    for (const Tried& tried : advice.tried) {
        caps.insert(tried.settings.bucket_mb);
        first_caps.insert(tried.settings.first_bucket_mb);
        groups.insert(tried.settings.groups);
    }
    Settings settings;
    double least = job.step(settings).step;
    for (const double cap : caps)
        for (const double first : first_caps)
            for (const unsigned number : groups) {
                settings.bucket_mb = cap;
                settings.first_bucket_mb = first;
                settings.groups = number;
                least = std::min(least, job.step(settings).step);
            }
    return least;
}

constexpr double kRounding = 1e-9;

TEST(Advice, IsAlmostAsGoodAsTryingEverything) {
    std::mt19937 random(10);
    double sum = 0;
    for (int i = 0; i < 300; ++i) {
        const Job job = random_job(random);
        const Advice advice = job.advice();
        const double lost = 1 - shortest(job, advice) / job.step(advice.settings).step;
        EXPECT_LT(lost, 0.04) << "job " << i;
        sum += lost;
    }
    EXPECT_LT(sum / 300, 0.01);
}

TEST(Advice, ChangesOnlyWhatSavesTwoPercent) {
    std::mt19937 random(11);
    int caps = 0, groups = 0;
    for (int i = 0; i < 300; ++i) {
        const Job job = random_job(random);
        const Advice advice = job.advice();
        const Settings usual = advice.tried.front().settings;
        const auto changed = [&](auto Settings::*member, auto by_default) {
            if (advice.settings.*member == by_default) return 0;
            Settings without = advice.settings;
            without.*member = by_default;
            const bool first_follows =
                advice.settings.first_bucket_mb == std::min(1.0, advice.settings.bucket_mb);
            if (first_follows) without.first_bucket_mb = std::min(1.0, without.bucket_mb);
            EXPECT_GE(job.saving(without, advice.settings), 0.02 - kRounding) << "job " << i;
            return 1;
        };
        caps += changed(&Settings::bucket_mb, usual.bucket_mb);
        changed(&Settings::first_bucket_mb, std::min(1.0, advice.settings.bucket_mb));
        groups += changed(&Settings::groups, usual.groups);
    }
    EXPECT_GT(caps, 30);
    EXPECT_GT(groups, 30);
}

std::vector<Settings> advised(const Advice& advice) {
    std::vector<Settings> all;
    for (const Tried& tried : advice.tried)
        if (tried.advised) all.push_back(tried.settings);
    return all;
}

std::vector<std::string> hooks(const std::vector<Settings>& all) {
    std::vector<std::string> names;
    for (const Settings& settings : all) names.push_back(settings.hook);
    return names;
}

TEST(Advice, KeepsTheDefaultsWhereNothingIsToBeSaved) {
    Job job;
    job.network = find_network("nvlink-ib");
    job.backward_ms = 2000;
    const Advice advice = job.advice();
    EXPECT_EQ(advice.tried.size(), 1u);
    EXPECT_EQ(advised(advice), std::vector<Settings>{Settings{}});
    EXPECT_EQ(advice.settings, Settings{});
    EXPECT_EQ(advice.text,
              "Keep libddp's defaults: communication that nothing hides takes 0.0 % of a step.\n");
}

TEST(Advice, SaysThatAHookChangesNumbers) {
    Job job;
    job.network = find_network("10gbit:latency-us=1:message-us=0.1");
    job.backward_ms = 80;
    const Advice advice = job.advice();
    EXPECT_EQ(hooks(advised(advice)), (std::vector<std::string>{"", "fp16"}));
    EXPECT_EQ(advice.settings.hook, "");
    EXPECT_EQ(advice.settings.groups, 1u);
    EXPECT_THAT(
        advice.text,
        HasSubstr("\nA hook changes numbers, so try it last. With fp16 or bf16 a step takes "));
    EXPECT_THAT(advice.text, Not(HasSubstr("powersgd")));
    EXPECT_THAT(advice.text, Not(HasSubstr("quantize")));
}

TEST(Advice, MentionsPowerSgdWhereSixteenBitsAreTooMany) {
    Job job;
    job.network = find_network("1gbit:latency-us=1:message-us=0.1");
    const Advice advice = job.advice();
    EXPECT_EQ(hooks(advised(advice)), (std::vector<std::string>{"", "fp16"}));
    EXPECT_EQ(advice.tried.back().settings.hook, "powersgd");
    EXPECT_THAT(advice.text, HasSubstr("\nWith quantize a step takes "));
    EXPECT_THAT(advice.text,
                HasSubstr(" ms, but powersgd changes numbers more and needs tuning.\n"));
}

TEST(Advice, AFirstBucketOfAllGradientsSavesALatency) {
    Job job;
    job.gradients = 10;
    job.mb = 0.16;
    job.backward_ms = 13;
    job.network = find_network("100gbit:latency-us=4800");
    const Advice advice = job.advice();
    EXPECT_EQ(advice.settings.bucket_mb, 25);
    EXPECT_EQ(advice.settings.first_bucket_mb, 2.5);
    EXPECT_EQ(advice.settings.groups, 1u);
    EXPECT_EQ(hooks(advised(advice)), std::vector<std::string>{""});
    EXPECT_THAT(advice.text, HasSubstr("\n  first_bucket_cap_bytes = 2621440 (2.5 MiB) saves "));
    EXPECT_THAT(advice.text, HasSubstr("\nNo hook is worth it: "));
}

TEST(Advice, ALargerCapComesBeforeGroups) {
    Job job;
    job.gradients = 190;
    job.mb = 5.8;
    job.backward_ms = 70;
    job.network = find_network("25gbit:latency-us=500:host-gb-s=1.5");
    job.cluster = {300, 5};
    Settings grouped;
    grouped.groups = 2;
    EXPECT_GT(job.saving(Settings{}, grouped), 0.02);
    const Advice advice = job.advice();
    EXPECT_EQ(advice.settings.bucket_mb, 100);
    EXPECT_EQ(advice.settings.groups, 1u);
}

TEST(Advice, GroupsHideLatency) {
    Job job;
    job.network = find_network("25gbit:latency-us=300");
    job.backward_ms = 60;
    job.cluster.world = 256;
    const Advice advice = job.advice();
    const std::vector<Settings> all = advised(advice);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all.front(), advice.settings);
    EXPECT_GT(advice.settings.groups, 1u);
    EXPECT_THAT(advice.text,
                HasSubstr("  round_robin = " + std::to_string(advice.settings.groups) + " saves "));
    EXPECT_THAT(advice.text, HasSubstr("\nNo hook is worth it: "));
}

TEST(Advice, OnOneHostTheDefaultIsThatOfShm) {
    Job job;
    job.cluster = {8, 8};
    job.backward_ms = 10;
    const Advice advice = job.advice();
    EXPECT_EQ(advice.tried.front().settings.bucket_mb, 1);
    for (const Tried& tried : advice.tried) EXPECT_EQ(tried.settings.hook, "");
    EXPECT_THAT(advice.text, HasSubstr("\nOn one host no hook is worth its time.\n"));
}

}  // namespace
}  // namespace bench
