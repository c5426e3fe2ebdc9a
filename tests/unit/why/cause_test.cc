// The rank that holds a group up, in each way that there is.
#include "why/cause.h"

#include <gmock/gmock.h>

#include "story.h"

namespace libddp::record {
namespace {

using Kind = Cause::Kind;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kPatience = 1000 * kMs;

class CauseTest : public ::testing::Test {
protected:
    // Three ranks in step 7, of which rank 1 is to have the fault. The others wait for bucket 0
    // from 20 ms on.
    CauseTest() {
        for (Story& story : all) story.begin_step(7, 10);
        for (const std::size_t rank : {0u, 2u}) all[rank].end_backward(7, 15).begin(4, 20, 7, 0);
    }
    std::optional<Cause> find(std::int64_t patience_ns = kPatience) {
        records = records_of(all);
        groups = find_groups(records, sights);
        return find_cause(groups.front(), patience_ns);
    }
    // All ranks run for this long.
    void live_until(double at) {
        for (Story& story : all) story.alive(at);
    }
    Verdict timeout(std::int32_t rank) { return {DDP_ERROR_TIMEOUT, rank, -1, 0, 7, "a timeout"}; }

    std::vector<Story> all = stories(3);
    std::vector<Sight> sights;
    std::vector<ProcessRecord> records;
    std::vector<Group> groups;
};

TEST_F(CauseTest, NobodyIsToBlameForAShortWait) {
    live_until(900);
    EXPECT_FALSE(find());
}

TEST_F(CauseTest, ARankIsBehind) {
    all[1].announce(0, 6).announce(1, 6).announce(2, 7);
    live_until(5020);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kBehind);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, StartsWith("rank 1 (pid 1001 on no-such-host-1) has not come"));
    EXPECT_THAT(cause->sentence, HasSubstr("in the backward pass of step 7 for 5.0 s, after 1 of 3 "
                                           "gradients; 'b', 'a' have not come"));
    EXPECT_THAT(cause->sentence,
                HasSubstr("ranks 0 and 2 have waited 5.0 s for it, at bucket 0 of step 7"));
}

TEST_F(CauseTest, ATimeoutNamesWhoIsBehind) {
    all[0].broken(3000, timeout(1));
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kBehind);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, HasSubstr("did not come"));
}

TEST_F(CauseTest, AStoppedProcessThatTheLauncherSaw) {
    sights = {{1, Sight::Kind::kStopped, "was stopped"}};
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kStopped);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, HasSubstr("is stopped"));
}

TEST_F(CauseTest, AProcessWithoutAHeartbeat) {
    live_until(6000);
    all[1].alive(1000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kStopped);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, HasSubstr("no thread of it has run for 5.0 s"));
}

TEST_F(CauseTest, AProcessThatWasStoppedAndWentOnToBeEnded) {
    all[0].broken(3000, timeout(1));
    live_until(4000);
    all[1].stand_still(500, 3100);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kStopped);
    EXPECT_THAT(cause->sentence, HasSubstr("no thread of it has run for 2.5 s"));
}

TEST_F(CauseTest, AProcessExitsAndHasNotLeft) {
    all[1].exit(12, 7);
    all[0].broken(30, {DDP_ERROR_RANK_FAILED, 1, -1, -1, -1, "rank 1 ended"});
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kDead);
    EXPECT_THAT(cause->sentence, HasSubstr("rank 1 (pid 1001 on no-such-host-1) exited with status "
                                           "7; it was in the backward pass"));
}

TEST_F(CauseTest, ACallFailedAndTheProcessExits) {
    all[1]
        .fail(11, {DDP_ERROR_OUT_OF_MEMORY, -1, -1, -1, -1, "no memory for a bucket"})
        .exit(12, 1);
    all[0].broken(30, {DDP_ERROR_RANK_FAILED, 1, -1, -1, -1, "rank 1 ended"});
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, HasSubstr("exited with status 1: no memory for a bucket"));
}

TEST_F(CauseTest, TheLastWordsOfAProcessThatExits) {
    sights = {{1, Sight::Kind::kExited, "exited with status 1", "MemoryError"}};
    all[1].exit(12, 1);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_THAT(cause->sentence,
                HasSubstr("exited with status 1: its last words were 'MemoryError'; it was in"));
}

TEST_F(CauseTest, ACallFailedOnAllRanks) {
    for (Story& story : all)
        story.fail(25, {DDP_ERROR_MISMATCH, 1, -1, -1, -1, "the ranks differ"}).exit(26, 1);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kDead);
    EXPECT_THAT(cause->sentence, HasSubstr("exited with status 1: the ranks differ"));
}

TEST_F(CauseTest, ADeadProcess) {
    sights = {{1, Sight::Kind::kKilled, "was killed by signal 9 (SIGKILL)"}};
    all[2].broken(30, {DDP_ERROR_RANK_FAILED, 1, -1, -1, -1, "rank 1 died"});
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kDead);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(
        cause->sentence,
        HasSubstr("was killed by signal 9 (SIGKILL); it was in the backward pass of step 7"));
}

TEST_F(CauseTest, TheDeathOfAnotherProcessOfTheRankIsNone) {
    all[1].opened(10);
    sights = {{1, Sight::Kind::kKilled, "was killed by signal 9 (SIGKILL)", "", 9 * kMs}};
    live_until(900);
    EXPECT_FALSE(find());
    sights.push_back({1, Sight::Kind::kKilled, "was killed by signal 11 (SIGSEGV)", "", 40 * kMs});
    sights.push_back({1, Sight::Kind::kKilled, "was killed by signal 7 (SIGBUS)", "", 50 * kMs});
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence,
                HasSubstr("was killed by signal 11 (SIGSEGV); it was in the backward pass"));
}

TEST_F(CauseTest, RanksMoveOnFromAGroupAfterADeath) {
    sights = {{1, Sight::Kind::kKilled, "was killed by signal 9 (SIGKILL)"}};
    all[0].broken(30, {DDP_ERROR_RANK_FAILED, 1, -1, -1, -1, "rank 1 died"}).leave(40);
    all[2].leave(41);
    ASSERT_TRUE(find());
    EXPECT_TRUE(groups[0].recorded[0].moved_on);
    EXPECT_FALSE(groups[0].recorded[1].moved_on);
    EXPECT_TRUE(groups[0].recorded[2].moved_on);
    EXPECT_NE(groups[0].recorded[0].at, Position::At::kLeft);  // when the group broke, it was in it
}

TEST_F(CauseTest, OfSeveralDeathsTheOneThatMadeOthersAbort) {
    sights = {{0, Sight::Kind::kKilled, "was killed by signal 6 (SIGABRT)"},
              {1, Sight::Kind::kKilled, "was killed by signal 11 (SIGSEGV)"}};
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->rank, 1);
}

TEST_F(CauseTest, AMistakeOfTheProgramIsToldInItsOwnWords) {
    all[1].broken(30, {DDP_ERROR_MISSING_GRADIENT, 1, 2, -1, 7, "rank 1 has no gradient of 'c'"});
    all[0].broken(31, {DDP_ERROR_RANK_FAILED, 1, -1, -1, -1, "an echo"});
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kVerdict);
    EXPECT_EQ(cause->sentence, "rank 1 has no gradient of 'c'");
}

TEST_F(CauseTest, ARankHasLeftAndTheOthersGoOn) {
    all[1].end_step(7, 11).leave(12);
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kLeft);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence,
                HasSubstr("left the group after step 7; ranks 0 and 2 have waited"));
}

TEST_F(CauseTest, ARankHasNoRecord) {
    all.erase(all.begin() + 1);
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kAbsent);
    EXPECT_EQ(cause->rank, 1);
}

TEST_F(CauseTest, ARankIsBehindAndAnotherHasNoRecord) {
    all.erase(all.begin());
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kBehind);
    EXPECT_EQ(cause->rank, 1);
}

TEST_F(CauseTest, ARankHasNoRecordAndNothingArrives) {
    all.erase(all.begin() + 1);
    Peer stuck{};
    stuck.rank = 1;
    stuck.waiting = 100;
    stuck.stuck_since_ns = 100 * kMs;
    all[0].peer(stuck).broken(3000, timeout(1));
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(
        cause->sentence,
        HasSubstr("the connection between rank 0 (on no-such-host-0) and rank 1 is dead: nothing "
                  "that rank 0 sends has arrived for 2.9 s (100 bytes wait)"));
}

TEST_F(CauseTest, RanksAreInDifferentOperations) {
    all[1].begin(4, 20, -1, -1, 0, DDP_COLLECTIVE_BARRIER);
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kDisagree);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_THAT(cause->sentence, HasSubstr("is in a barrier of the program"));
}

TEST_F(CauseTest, ALinkIsDead) {
    all[1].begin(4, 20, 7, 0);
    Peer stuck{};
    stuck.rank = 2;
    stuck.waiting = 1'200'000;
    stuck.stuck_since_ns = 100 * kMs;
    stuck.resent = 5;
    all[0].peer(stuck);
    live_until(3100);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kTransfer);
    EXPECT_EQ(cause->rank, -1);
    EXPECT_THAT(cause->sentence, HasSubstr("the connection between rank 0 (on no-such-host-0) and "
                                           "rank 2 (on no-such-host-2) is dead"));
    EXPECT_THAT(cause->sentence, HasSubstr("3.0 s (1.2 MB wait; packets sent again: 5)"));
}

TEST_F(CauseTest, ALinkIsSlow) {
    all[1].begin(4, 20, 7, 0);
    Peer slow{};
    slow.rank = 2;
    slow.waiting = 1'200'000;
    slow.stuck_since_ns = 3050 * kMs;
    slow.arrived = 3'000'000;
    slow.busy_ns = 3000 * kMs;
    Peer fast = slow;
    fast.rank = 0;
    fast.busy_ns = 3 * kMs;
    all[0].peer(slow);
    all[1].peer(fast);
    live_until(3100);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kTransfer);
    EXPECT_THAT(cause->sentence,
                HasSubstr("rank 2 (on no-such-host-2) is slow: it moves 1.0 MB a second"));
}

TEST_F(CauseTest, OfABackendThatCountsNothingTheHostsAreNamed) {
    all[1].begin(4, 20, 7, 0);
    live_until(3100);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_THAT(
        cause->sentence,
        HasSubstr(
            "the network between the hosts no-such-host-0 (rank 0), no-such-host-1 (rank 1)"));
}

TEST_F(CauseTest, ATimeoutOfAnOperationInWhichAllAreBlamesNoRank) {
    all[1].begin(4, 20, 7, 0);
    all[0].broken(3000, timeout(1));
    live_until(3000);
    const auto cause = find();
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->kind, Kind::kTransfer);
    EXPECT_EQ(cause->rank, -1);
}

TEST_F(CauseTest, OfAJobThatHasEndedWellNobodyIsToBlame) {
    all[1].end_backward(7, 15).begin(4, 20, 7, 0);
    for (Story& story : all) story.end(4, 20, 21, 7, 0).end_step(7, 22).leave(9000);
    EXPECT_FALSE(find(0));
}

}  // namespace
}  // namespace libddp::record
