// Rosters and their members: joining, dying, being silent, leaving, and waiting for room.
#include "elastic/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "support.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

using testing::kLongMs;

class Elastic : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Membership> enter(MembershipOptions options) {
        if (options.timeout_ms == kDefaultTimeoutMs) options.timeout_ms = kLongMs;
        return std::make_unique<Membership>(service_->connect(), "job", options);
    }
    // Each on a thread of its own, as processes are.
    std::future<Roster> meet(Membership& member, std::int64_t steps) {
        return std::async(std::launch::async, [&member, steps] { return member.meet(steps); });
    }
    // A job of so many, in the order of their ranks.
    std::vector<std::unique_ptr<Membership>> start(int world, MembershipOptions options) {
        std::vector<std::unique_ptr<Membership>> all;
        std::vector<std::future<Roster>> rosters;
        for (int i = 0; i < world; ++i) all.push_back(enter(options));
        for (const auto& one : all) rosters.push_back(meet(*one, -1));
        for (auto& roster : rosters) roster.get();
        std::sort(all.begin(), all.end(),
                  [](const auto& a, const auto& b) { return a->roster().rank < b->roster().rank; });
        return all;
    }

    std::unique_ptr<testing::Service> service_ = testing::make_service(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Kinds, Elastic, ::testing::Values("tcp", "file"),
                         [](const auto& kind) { return std::string(kind.param); });

constexpr MembershipOptions kThree{3, 3, 10'000};

TEST_P(Elastic, TheFirstRosterDoesNotWaitForMoreThanTheLauncherStarts) {
    const auto begin = std::chrono::steady_clock::now();
    MembershipOptions options{1, 8, 2 * kLongMs};
    options.first_world = 3;
    EXPECT_EQ(start(3, options)[0]->roster().members.size(), 3U);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kLongMs));
}

TEST_P(Elastic, TheFirstRosterHasAllThatItMayHave) {
    const auto all = start(3, kThree);
    for (int rank = 0; rank < 3; ++rank) {
        const Roster& roster = all[static_cast<std::size_t>(rank)]->roster();
        EXPECT_EQ(roster.number, 1);
        EXPECT_EQ(roster.rank, rank);
        EXPECT_EQ(roster.members, all[0]->roster().members);
        EXPECT_EQ(roster.joined, 3);
        EXPECT_EQ(roster.newest(), -1);
    }
}

// As if each process were on the host of this name.
class OnHost {
public:
    explicit OnHost(const char* name) { setenv("DDP_HOST_ID", name, 1); }
    ~OnHost() { unsetenv("DDP_HOST_ID"); }
    OnHost(const OnHost&) = delete;
    OnHost& operator=(const OnHost&) = delete;
};

TEST_P(Elastic, TheRanksOfAHostAreInARow) {
    const MembershipOptions four{3, 4, 10'000};
    // In the order of coming.
    std::vector<std::unique_ptr<Membership>> all;
    std::vector<std::future<Roster>> rosters;
    for (const char* host : {"a", "b", "a", "b"}) {
        const OnHost on(host);
        all.push_back(enter(four));
    }
    for (const auto& one : all) rosters.push_back(meet(*one, -1));
    std::vector<std::int32_t> ranks;
    for (auto& roster : rosters) ranks.push_back(roster.get().rank);
    EXPECT_THAT(ranks, ::testing::ElementsAre(0, 2, 1, 3));

    // The last rank of host a dies, and another one of that host comes.
    all[2].reset();
    rosters.clear();
    for (const int i : {0, 1, 3}) rosters.push_back(meet(*all[static_cast<std::size_t>(i)], 5));
    ranks.clear();
    for (auto& roster : rosters) ranks.push_back(roster.get().rank);
    EXPECT_THAT(ranks, ::testing::ElementsAre(0, 1, 2));
    {
        const OnHost on("a");
        all[2] = enter(four);
    }
    auto comes = meet(*all[2], -1);
    ASSERT_TRUE(testing::eventually([&] { return all[0]->is_due(10) || all[0]->is_due(12); }));
    rosters.clear();
    for (const int i : {0, 1, 3}) rosters.push_back(meet(*all[static_cast<std::size_t>(i)], 12));
    const Roster its = comes.get();
    EXPECT_EQ(its.rank, 1);
    EXPECT_FALSE(its.stayed);
    EXPECT_THAT(its.donors(), ::testing::ElementsAre(0, 2, 3));
    ranks.clear();
    for (auto& one : rosters) {
        const Roster roster = one.get();
        ranks.push_back(roster.rank);
        EXPECT_TRUE(roster.stayed);
        EXPECT_EQ(roster.joined, 1);
        EXPECT_EQ(roster.members, its.members);
    }
    EXPECT_THAT(ranks, ::testing::ElementsAre(0, 2, 3));
}

TEST_P(Elastic, TheFirstRosterWaitsForMoreThanTheLeast) {
    MembershipOptions options{1, 8, 500};
    const auto all = start(3, options);
    EXPECT_EQ(all[0]->roster().members.size(), 3U);
}

TEST_P(Elastic, SurvivorsGoOnAndKnowWhoIsAhead) {
    auto all = start(3, {1, 3, 10'000});
    const std::string dead = all[1]->roster().members[1].id;
    all[1].reset();
    auto first = meet(*all[0], 4), last = meet(*all[2], 5);
    const Roster at_first = first.get(), at_last = last.get();
    EXPECT_EQ(at_first.members, at_last.members);
    EXPECT_EQ(at_first.number, 2);
    EXPECT_EQ(at_first.rank, 0);
    EXPECT_EQ(at_last.rank, 1);
    EXPECT_EQ(at_first.newest(), 5);
    EXPECT_EQ(at_first.members[0].steps, 4);
    EXPECT_THAT(at_first.left, ::testing::ElementsAre(dead));
    EXPECT_EQ(at_first.joined, 0);
}

TEST_P(Elastic, WhoIsSilentIsLeftBehindAndIsTold) {
    auto all = start(3, {1, 3, 300});
    auto first = meet(*all[0], 2), last = meet(*all[2], 2);
    EXPECT_EQ(first.get().members.size(), 2U);
    last.get();
    testing::expect_error(DDP_ERROR_RANK_FAILED,
                          {"without this rank", "roster 2", "300 ms", "join again"},
                          [&] { all[1]->meet(2); });
    // It comes again, as somebody else.
    all[1] = enter({1, 3, 300});
    auto again = meet(*all[1], -1);
    ASSERT_TRUE(testing::eventually([&] { return all[0]->is_due(10) || all[0]->is_due(12); }));
    first = meet(*all[0], 12), last = meet(*all[2], 12);
    EXPECT_EQ(again.get().rank, 2);
    EXPECT_EQ(first.get().joined, 1);
    EXPECT_EQ(last.get().newest(), 12);
}

TEST_P(Elastic, AllMembersMeetAtTheSameStepForOneThatJoins) {
    auto all = start(2, {1, 3, 300});
    EXPECT_FALSE(all[0]->is_due(1));
    const auto newcomer = enter({1, 3, 300});
    auto joins = meet(*newcomer, loaded_steps(100));  // which is not the state of the job
    std::int64_t step = 1;
    ASSERT_TRUE(
        testing::eventually([&] { return all[0]->is_due(++step) || all[0]->is_due(step + 2); }));
    const std::int64_t at = step + (all[0]->is_due(step) ? 0 : 2);
    ASSERT_TRUE(testing::eventually([&] { return all[1]->is_due(at); }));
    EXPECT_FALSE(all[1]->is_due(at - 1));
    auto first = meet(*all[0], at), second = meet(*all[1], at);
    const Roster roster = joins.get();
    EXPECT_EQ(roster.rank, 2);
    EXPECT_EQ(roster.members[2].steps, loaded_steps(100));
    EXPECT_THAT(roster.donors(), ::testing::ElementsAre(0, 1));
    EXPECT_EQ(roster.newest(), at);
    first.get();
    second.get();
}

// Its group did not form, so it meets again with what it has loaded, as one of the members.
TEST_P(Elastic, ACheckpointIsNotTheStateOfTheJobAfterAFirstAttemptToJoin) {
    auto all = start(2, {1, 3, 300});
    const auto newcomer = enter({1, 3, 300});
    auto joins = meet(*newcomer, loaded_steps(1000));
    ASSERT_TRUE(testing::eventually([&] { return all[0]->is_due(10) || all[0]->is_due(12); }));
    auto first = meet(*all[0], 12), second = meet(*all[1], 12);
    EXPECT_EQ(first.get().members.size(), 3U);
    second.get();
    joins.get();
    all[1].reset();
    first = meet(*all[0], 12), joins = meet(*newcomer, loaded_steps(1000));
    const Roster roster = joins.get();
    EXPECT_EQ(roster.number, 3);
    EXPECT_EQ(roster.joined, 0);
    EXPECT_THAT(roster.donors(), ::testing::ElementsAre(0));
    EXPECT_EQ(roster.newest(), 12);
    first.get();
}

TEST(Roster, TheNewestCheckpointCountsWhereNobodyHasTheState) {
    Roster roster;
    roster.members = {
        {"a", loaded_steps(3)}, {"b", -1}, {"c", loaded_steps(7)}, {"d", loaded_steps(7)}};
    EXPECT_THAT(roster.donors(), ::testing::ElementsAre(2, 3));
    EXPECT_EQ(roster.newest(), 7);
    roster.members[1].steps = 0;
    EXPECT_THAT(roster.donors(), ::testing::ElementsAre(1));
    EXPECT_EQ(roster.newest(), 0);
}

TEST_P(Elastic, ASpareWaitsUntilThereIsRoom) {
    auto all = start(2, {1, 2, 10'000});
    const auto spare = enter({1, 2, 10'000});
    auto joins = meet(*spare, -1);
    for (int step = 1; step < 20; ++step) {
        EXPECT_FALSE(all[0]->is_due(step));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    all[0].reset();
    auto survivor = meet(*all[1], 7);
    EXPECT_EQ(survivor.get().rank, 0);
    EXPECT_EQ(joins.get().rank, 1);
}

// It has waited for a place for longer than a meeting takes to settle. A rank that comes from a
// checkpoint is still in time.
TEST_P(Elastic, WhoWaitedForAPlaceInAJobThatHasEndedWaitsForOthers) {
    const std::int64_t settle_ms = with_slack(1000);
    const MembershipOptions options{1, 3, settle_ms};
    auto all = start(2, options);
    const auto waits = enter(options);
    auto begins = meet(*waits, -1);
    std::this_thread::sleep_for(std::chrono::milliseconds(settle_ms + 200));
    const auto ended = std::chrono::steady_clock::now();
    all.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto late = enter(options);
    auto comes = meet(*late, loaded_steps(5000));
    const Roster roster = begins.get();
    EXPECT_GE(testing::elapsed_ms(ended), settle_ms);
    EXPECT_EQ(roster.members.size(), 2U);
    EXPECT_THAT(roster.donors(), ::testing::ElementsAre(1));
    EXPECT_EQ(roster.newest(), 5000);
    EXPECT_EQ(comes.get().number, 2);
}

// It has waited for a place for longer than the timeout, which is for who has too few beside it.
TEST_P(Elastic, WhoWaitedForAPlaceHasTheWholeTimeoutWhenNobodyIsLeft) {
    const std::int64_t timeout_ms = with_slack(1000);
    const MembershipOptions options{2, 2, 300, timeout_ms};
    auto all = start(2, options);
    const auto spare = enter(options);
    auto waits = meet(*spare, -1);
    std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms + 500));
    all.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto late = enter(options);
    auto comes = meet(*late, -1);
    EXPECT_EQ(waits.get().members.size(), 2U);
    EXPECT_EQ(comes.get().members.size(), 2U);
}

TEST_P(Elastic, WhoLeavesIsNotWaitedFor) {
    auto all = start(2, {1, 2, kLongMs});
    all[0]->announce_leave();
    ASSERT_TRUE(testing::eventually([&] { return all[0]->is_due(1) || all[0]->is_due(3); }));
    all[0]->leave();
    const Roster roster = meet(*all[1], 3).get();
    EXPECT_EQ(roster.members.size(), 1U);
    EXPECT_EQ(roster.left.size(), 1U);
    testing::expect_error(DDP_ERROR_INVALID_STATE, {"has left the job"}, [&] { all[0]->meet(3); });
}

// Longer than the timeout, which is for who has too few beside it.
TEST_P(Elastic, WhoIsSilentIsWaitedForUntilTheMeetingHasSettled) {
    const MembershipOptions options{1, 2, 1000, 100};
    std::vector<std::unique_ptr<Membership>> all;
    for (int i = 0; i < 2; ++i)
        all.push_back(std::make_unique<Membership>(service_->connect(), "job", options));
    auto first = meet(*all[0], -1), second = meet(*all[1], -1);
    EXPECT_EQ(first.get().members.size(), 2U);
    EXPECT_EQ(second.get().members.size(), 2U);
    EXPECT_EQ(meet(*all[0], 3).get().members.size(), 1U);
}

TEST_P(Elastic, TheStoreDoesNotGrowWithTheNumberOfRosters) {
    auto all = start(2, {2, 2, kLongMs});
    const auto look = service_->connect();
    const auto next_roster = [&](int step) {
        all[1].reset();
        all[1] = enter({2, 2, kLongMs});
        auto stays = meet(*all[0], step), joins = meet(*all[1], -1);
        stays.get();
        joins.get();
        for (const auto& one : all) {
            const std::string roster = std::to_string(one->roster().number);
            look->set("elastic/job/group/" + roster + "/rank/" + std::to_string(one->roster().rank),
                      "here");
            one->remove_old_keys();
        }
    };
    for (int step = 0; step < 8; ++step) next_roster(step);
    const std::size_t keys = look->list_keys("").size();
    for (int step = 8; step < 20; ++step) next_roster(step);
    EXPECT_LE(look->list_keys("").size(), keys);
    // A launcher that is late still sees how the members of the newest rosters have ended.
    EXPECT_GE(look->list_keys("elastic/job/gone/").size(), 4U);
    EXPECT_EQ(all[0]->roster().number, 21);
    // The members that are left are enough for ranks that come, and for ranks that are left behind.
    all[0].reset();
    all[1].reset();
    EXPECT_EQ(start(2, {2, 2, kLongMs})[0]->roster().number, 22);
}

TEST_P(Elastic, AMemberThatHasEndedIsKnown) {
    auto all = start(3, kThree);
    EXPECT_TRUE(all[0]->lost_member().ok());
    all[2].reset();
    const ErrorInfo lost = all[0]->lost_member();
    EXPECT_EQ(lost.code, DDP_ERROR_RANK_FAILED);
    EXPECT_EQ(lost.rank, 2);
}

TEST_P(Elastic, TooFewIsAnError) {
    auto all = start(2, {2, 2, 100});
    all[0].reset();
    MembershipOptions options{2, 2, 100, 500};
    const auto start = std::chrono::steady_clock::now();
    const auto alone = std::make_unique<Membership>(service_->connect(), "other job", options);
    testing::expect_error(DDP_ERROR_TIMEOUT,
                          {"roster 1", "500 ms", "1 processes", "min_world is 2"},
                          [&] { alone->meet(-1); });
    EXPECT_LT(testing::elapsed_ms(start), kLongMs);
}

TEST_P(Elastic, WhoMeetsAgainAfterATimeoutIsInTheRosterThatHasBegun) {
    const MembershipOptions options{2, 2, kLongMs, 100};
    const auto first = std::make_unique<Membership>(service_->connect(), "job", options);
    testing::expect_error(DDP_ERROR_TIMEOUT, {"roster 1"}, [&] { first->meet(-1); });
    const auto second = enter({2, 2, kLongMs});
    EXPECT_EQ(second->meet(-1).members.size(), 2U);
    const Roster& roster = first->meet(-1);
    EXPECT_EQ(roster.number, 1);
    EXPECT_EQ(roster.rank, 0);
    EXPECT_EQ(roster.joined, 2);
    EXPECT_EQ(roster.members, second->roster().members);
}

TEST_P(Elastic, WhoJoinsAndWasInterruptedIsInTheRosterThatHasBegun) {
    auto all = start(2, {1, 3, 300});
    const auto newcomer = enter({1, 3, 300});
    const auto look = service_->connect();
    std::atomic<bool> wanted{false};
    std::thread observer([&] {
        EXPECT_TRUE(testing::eventually([&] { return look->check({"elastic/job/join/2"}); }));
        wanted = true;
    });
    interrupt::install(
        [](void* at) -> std::int32_t { return *static_cast<std::atomic<bool>*>(at); }, &wanted,
        nullptr, true);
    testing::expect_error(DDP_ERROR_INTERRUPTED, {"interrupted"}, [&] { newcomer->meet(-1); });
    interrupt::install(nullptr, nullptr, nullptr, false);
    observer.join();
    auto first = meet(*all[0], 7), second = meet(*all[1], 7);
    EXPECT_EQ(first.get().members.size(), 3U);
    EXPECT_EQ(second.get().number, 2);
    const Roster& roster = newcomer->meet(-1);
    EXPECT_EQ(roster.number, 2);
    EXPECT_EQ(roster.rank, 2);
    EXPECT_EQ(roster.joined, 1);
    EXPECT_TRUE(roster.left.empty());
}

TEST_P(Elastic, BadOptionsAreRefused) {
    for (const auto& options : {MembershipOptions{0, 1}, MembershipOptions{3, 2}})
        testing::expect_error(DDP_ERROR_INVALID_ARGUMENT, {"min_world", "max_world"},
                              [&] { enter(options); });
}

// By the store's will. A file store knows it only where the process's files are on this host.
TEST_P(Elastic, AKilledProcessIsNotWaitedFor) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    GTEST_SKIP() << "ThreadSanitizer has no threads in a child of a process with threads";
#endif
#endif
    const std::string uri = service_->uri();
    const pid_t child = fork();
    if (child == 0) {
        try {
            Membership member(testing::open(uri), "job", {2, 2, kLongMs, kLongMs});
            member.meet(-1);
            pause();
        } catch (const std::exception&) {
        }
        _exit(1);
    }
    const auto mine = enter({2, 2, kLongMs});
    EXPECT_EQ(mine->meet(-1).members.size(), 2U);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(testing::eventually([&] {
        const auto look = testing::open(uri);
        for (const std::string& key : look->list_keys("elastic/job/gone/"))
            if (key.ends_with(std::to_string(child))) return true;
        return false;
    }));
    EXPECT_LT(testing::elapsed_ms(start), kLongMs);
}

// Whatever happens, a roster has the same members for all of them, and no step that some member of
// a later roster knew is forgotten as long as one of those who knew it stays.
TEST_P(Elastic, AStormHasOneHistory) {
    constexpr int kThreads = 5, kRounds = 30;
    std::mutex mutex;
    std::map<std::int64_t, std::vector<Member>> seen;
    std::atomic<int> living{kThreads};
    std::vector<std::future<void>> all;
    for (int i = 0; i < kThreads; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            std::mt19937 chance(static_cast<unsigned>(i) + 1);
            const auto percent = [&](unsigned wanted) { return chance() % 100 < wanted; };
            std::int64_t steps = -1;
            auto me = enter({1, 4, 200});
            for (int round = 0; round < kRounds; ++round) {
                try {
                    const Roster roster = me->meet(steps);
                    const std::lock_guard lock(mutex);
                    const auto [at, is_new] = seen.emplace(roster.number, roster.members);
                    EXPECT_EQ(at->second, roster.members) << "roster " << roster.number;
                    EXPECT_LE(roster.members.size(), 4U);
                    EXPECT_EQ(roster.members[static_cast<std::size_t>(roster.rank)].steps, steps);
                    steps = std::max<std::int64_t>(roster.newest(), 0) + (percent(50) ? 1 : 0);
                } catch (const Error& error) {
                    EXPECT_EQ(error.info().code, DDP_ERROR_RANK_FAILED) << error.info().message;
                    me = enter({1, 4, 200});
                    steps = -1;
                }
                if (percent(10)) std::this_thread::sleep_for(std::chrono::milliseconds(300));
                if (percent(15)) {
                    if (percent(50)) me->leave();
                    me = enter({1, 4, 200});
                    steps = -1;
                }
            }
            me->leave();
            --living;
        }));
    for (auto& one : all) one.get();
    std::int64_t newest = -1;
    for (const auto& [number, members] : seen) {
        Roster roster;
        roster.members = members;
        EXPECT_TRUE(roster.newest() < 0 || roster.newest() + 1 >= newest) << "roster " << number;
        newest = roster.newest();
    }
}

}  // namespace
}  // namespace libddp
