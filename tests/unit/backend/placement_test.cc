// Ranks of one host that share a processor, and ranks that do not.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <optional>
#include <vector>

#include "support/quota_group.h"
#include "unit/backend/fake_host.h"
#include "util/processors.h"

namespace libddp {
namespace {

using namespace testing_backend;
using Clock = std::chrono::steady_clock;

std::vector<int> processors() {
    cpu_set_t set;
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    return found;
}

// The threads of each_rank() end with it, and so does what this asks for.
void move_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

ddp_collective allreduce_of(std::vector<float>& data) {
    ddp_collective c{};
    c.struct_size = sizeof c;
    c.kind = DDP_COLLECTIVE_ALLREDUCE;
    c.dtype = DDP_F32;
    c.op = DDP_SUM;
    c.send = c.recv = data.data();
    c.count = data.size();
    c.scale = 1;
    c.timeout_ms = 20000;
    return c;
}

// Far longer than a rank may wait for nothing.
constexpr std::int64_t kPatienceNs = 20'000'000'000;

class Placement : public testing::Test {
protected:
    void SetUp() override {
        if (cpus_.size() < 2 || usable_processors() < 2)
            GTEST_SKIP() << "there is one processor only";
        ASSERT_TRUE(world_.connected());
    }

    // Rank 0 looks for rank 1 when both have been seen on these processors. rank_1 is what rank 1
    // does before it comes. Returns whether rank 0 saw it come.
    bool look(World& world, int cpu_0, int cpu_1, const std::function<void()>& rank_1) {
        bool seen = false;
        world.each([&](Rank& rank) {
            move_to(rank.rank() == 0 ? cpu_0 : cpu_1);
            std::vector<float> data(3, 1);
            ASSERT_EQ(rank.allreduce(data), DDP_OK);
            const ddp_collective c = allreduce_of(data);
            if (rank.rank() == 0) {
                std::int32_t all_here = 0;
                EXPECT_EQ(rank.backend().ready(rank.transport(), &c, kPatienceNs, &all_here,
                                               &rank.failure),
                          DDP_OK);
                seen = all_here != 0;
                looked_ = true;
            } else {
                rank_1();
            }
            EXPECT_EQ(rank.run(c), DDP_OK);
            EXPECT_EQ(data, std::vector<float>(3, 4));
        });
        return seen;
    }

    const std::vector<int> cpus_ = processors();
    World world_{2, "", 0, 20000, shm_backend()};
    std::atomic<bool> looked_{false};
};

TEST_F(Placement, ARankDoesNotSpinOnTheProcessorThatItsPeerNeeds) {
    const auto begin = Clock::now();
    EXPECT_FALSE(look(world_, cpus_[0], cpus_[0], [this] {
        while (!looked_) sched_yield();
    }));
    EXPECT_LT(elapsed_ms(begin), kPatienceNs / 1'000'000 / 2);
}

TEST_F(Placement, ARankOnAProcessorOfItsOwnLooksForItsPeer) {
    EXPECT_TRUE(look(world_, cpus_[0], cpus_[1],
                     [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }));
}

// Two ranks on a processor each, and a quota that pays for one.
class Quota : public Placement {
protected:
    void SetUp() override {
        if (cpus_.size() < 2) GTEST_SKIP() << "there is one processor only";
        if (!group_.made())
            GTEST_SKIP() << "this machine lets the test make no control group with a quota";
        within_.emplace(2, "", 0, 20000, shm_backend());
        ASSERT_TRUE(within_->connected());
    }

    const QuotaGroup group_{100'000, 100'000};
    std::optional<World> within_;
};

TEST_F(Quota, ARankDoesNotSpinAwayWhatPaysForItsPeer) {
    const auto begin = Clock::now();
    EXPECT_FALSE(look(*within_, cpus_[0], cpus_[1], [this] {
        while (!looked_) sched_yield();
    }));
    EXPECT_LT(elapsed_ms(begin), kPatienceNs / 1'000'000 / 2);
}

}  // namespace
}  // namespace libddp
