// The network and the timeline of ddp-bench predict, against what can be worked out by hand.
#include <gtest/gtest.h>

#include "predict/network.h"
#include "predict/timeline.h"

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
    const std::vector<Collective> schedule = {after_gradient(0), after_gradient(0), after_gradient(0)};
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
    const auto waiting = [&](int world) { return play({}, compute, always(0, 0), world, {}, 400).waiting; };
    EXPECT_NEAR(waiting(2), 100 * 0.05 * 0.564, 0.5);  // the expected greatest of two normal numbers
    EXPECT_NEAR(waiting(1024), 100 * 0.05 * 3.24, 0.5);
    EXPECT_EQ(play({}, compute, always(0, 0), 8, {}, 10, 7).step, play({}, compute, always(0, 0), 8, {}, 10, 7).step);
}

TEST(Timeline, ProcessorsAreShared) {
    const std::vector<Collective> schedule = {after_gradient(0)};
    const Compute compute = even(2, 20);
    // Communication wants half a core and gets it; the other half of the pass then runs at half its speed.
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
    std::vector<Collective> schedule = {after_gradient(0), after_gradient(0), after_gradient(0), after_gradient(0, 1)};
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

TEST(Network, AllreduceMovesEachByteTwice) {
    const Network network = find_network("25gbit:host-gb-s=1:latency-us=10:message-us=1");
    const auto cost = [&](int world, int ranks_a_host, ddp_collective_kind kind) {
        return cost_of(network, {world, ranks_a_host}, kind, 1e6);
    };
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLREDUCE).transfer_ms, 2 * 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLREDUCE).latency_ms, 2 * 13e-3, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_REDUCE_SCATTER).transfer_ms, 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_ALLGATHER).transfer_ms, 4 * 0.75, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_BROADCAST).transfer_ms, 1, kMs);
    EXPECT_NEAR(cost(1, 1, DDP_COLLECTIVE_ALLREDUCE).all(), 0, kMs);
    EXPECT_NEAR(cost(4, 1, DDP_COLLECTIVE_BARRIER).transfer_ms, 0, kMs);
    // Of 1024 hosts the logarithm counts, not their number.
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
    for (const char* text : {"", "26gbit", "25gbit:", "25gbit:speed=1", "25gbit:host-gb-s=", "25gbit:host-gb-s=0",
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
    for (const std::string& other : {good, std::string("{}"), std::string("no JSON"), std::string("[1]"),
                                     std::string(R"({"name":"allreduce","world":3,"bytes":2,"median_ms":1})"),
                                     std::string(R"({"name":"replay","world":2,"bytes":2,"median_ms":1})"),
                                     std::string(R"({"name":"allreduce","world":"2","bytes":2,"median_ms":1})"),
                                     std::string(R"({"name":"allreduce","world":2,"bytes":2,"median_ms":-1})")})
        EXPECT_THROW(Measured({good, other}), std::invalid_argument) << other;
    EXPECT_THROW(Measured({good}), std::invalid_argument);
    EXPECT_THROW(Measured({}), std::invalid_argument);
}

}  // namespace
}  // namespace bench
