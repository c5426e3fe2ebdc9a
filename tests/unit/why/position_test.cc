// Where each rank is, from records made by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "story.h"
#include "why/cause.h"
#include "why/progress.h"

namespace libddp::record {
namespace {

// A few bytes of a file can claim a group of very many ranks: those cost no memory.
TEST(Position, OnlyRanksThatHaveARecordAreKept) {
    std::vector<Story> all{Story(50'000, 60'000), Story(7, 60'000)};
    const auto records = records_of(all);
    const auto groups = find_groups(records, {});
    ASSERT_EQ(groups.size(), 1u);
    const Group& group = groups[0];
    EXPECT_EQ(group.world, 60'000);
    ASSERT_EQ(group.recorded.size(), 2u);
    EXPECT_EQ(group.find(7), group.recorded.data());
    EXPECT_EQ(group.find(50'000), group.recorded.data() + 1);
    for (const std::int32_t rank : {-1, 0, 8, 59'999, 60'000})
        EXPECT_EQ(group.find(rank), nullptr) << rank;
    const auto absent = absent_ranks(group);
    EXPECT_EQ(absent, (std::vector<RankRange>{{0, 6}, {8, 49'999}, {50'001, 59'999}}));
    EXPECT_EQ(count_of(absent), 59'998);
    EXPECT_EQ(ranges_text(absent),
              "ranks 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and "
              "59978 more");
    const std::string text = group_text(group, 0);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
}

TEST(Position, FollowsAStep) {
    auto all = stories(2);
    all[0]
        .begin_step(7, 10)
        .launch(7, 0, 12)
        .end_hook(7, 0, 12, 13)
        .end_backward(7, 15)
        .begin(4, 16, 7, 0);
    all[1].begin_step(7, 10).announce(2, 7).announce(1, 6).announce(0, 6);
    const auto records = records_of(all);
    const auto groups = find_groups(records, {});
    ASSERT_EQ(groups.size(), 1u);
    const Position& first = groups[0].recorded[0];
    EXPECT_EQ(first.at, Position::At::kFinalize);
    EXPECT_EQ(first.step, 7);
    EXPECT_EQ(first.begun, 5);
    ASSERT_TRUE(first.underway);
    EXPECT_EQ(describe(*first.underway), "bucket 0 of step 7");
    const Position& second = groups[0].recorded[1];
    EXPECT_EQ(second.at, Position::At::kBackward);
    EXPECT_EQ(second.announced, 1u);
    EXPECT_EQ(second.expected, 3u);
    EXPECT_EQ(second.missing, (std::vector<std::string>{"b", "a"}));
}

TEST(Position, OfAHookReturnsToWhereItWas) {
    auto all = stories(2);
    all[0].begin_step(0, 1).launch(0, 0, 2);
    all[1].begin_step(0, 1).launch(0, 0, 2).end_hook(0, 0, 2, 3);
    const auto records = records_of(all);
    const auto groups = find_groups(records, {});
    EXPECT_EQ(groups[0].recorded[0].at, Position::At::kHook);
    EXPECT_EQ(groups[0].recorded[0].bucket, 0);
    EXPECT_EQ(groups[0].recorded[1].at, Position::At::kBackward);
    EXPECT_EQ(groups[0].recorded[1].since_ns, 1 * kMs);
}

TEST(Position, IsThatOfTheMomentWhenTheGroupBroke) {
    auto all = stories(2);
    all[0]
        .begin_step(0, 1)
        .broken(5, {DDP_ERROR_TIMEOUT, 1, -1, -1, -1, "late"})
        .end_step(0, 9)
        .leave(10);
    all[1].begin_step(0, 1).end_step(0, 7).leave(8);
    const auto records = records_of(all);
    const auto groups = find_groups(records, {});
    EXPECT_EQ(groups[0].now_ns, 5 * kMs);
    EXPECT_EQ(groups[0].recorded[0].at, Position::At::kBackward);
    EXPECT_EQ(groups[0].recorded[1].at, Position::At::kBackward);
}

TEST(Position, KnowsWhatTheLauncherSaw) {
    auto all = stories(3);
    all[2].leave(3);
    const auto records = records_of(all);
    const auto groups = find_groups(records, {{0, Sight::Kind::kKilled, "was killed"},
                                              {1, Sight::Kind::kStopped, "was stopped"}});
    EXPECT_TRUE(groups[0].recorded[0].killed);
    EXPECT_EQ(groups[0].recorded[0].life, Life::kEnded);
    EXPECT_EQ(groups[0].recorded[1].life, Life::kStopped);
    EXPECT_EQ(groups[0].recorded[2].at, Position::At::kLeft);
}

TEST(Position, OfAnEarlierJobWithMoreRanksIsLeftOut) {
    // on other hosts
    std::vector<Story> all{Story(2, 4).opened(1).begin(0, 2), Story(3, 4).opened(1)};
    for (Story& story : stories(2)) all.push_back(story.opened(100).begin(0, 110));
    const auto records = records_of(all);
    const auto groups =
        find_groups(records, {{3, Sight::Kind::kKilled, "was killed", "", 50 * kMs}});
    ASSERT_EQ(groups.size(), 1u);
    EXPECT_EQ(groups[0].world, 2);
    ASSERT_EQ(groups[0].recorded.size(), 2u);
    for (const Position& position : groups[0].recorded) {
        EXPECT_EQ(position.at, Position::At::kOperation);
        EXPECT_EQ(position.process->opened_realtime_ns, 100 * kMs);
    }
}

TEST(Position, IsNotStoppedByWhatWasSeenOfAnEarlierProcess) {
    auto all = stories(2);
    all[1].opened(100);
    const auto records = records_of(all);
    const auto sight = [&](std::int64_t at) {
        return find_groups(records, {{1, Sight::Kind::kStopped, "was stopped", "", at * kMs}})[0]
            .recorded[1]
            .life;
    };
    EXPECT_NE(sight(99), Life::kStopped);
    EXPECT_EQ(sight(101), Life::kStopped);
}

TEST(Position, StandsStillIfItsHeartDoes) {
    auto all = stories(2);
    all[0].begin(0, 10).alive(9000);
    all[1].begin_step(0, 10).alive(4000);
    const auto records = records_of(all);
    const auto groups = find_groups(records, {});
    EXPECT_EQ(groups[0].recorded[0].still_ns, 0);
    EXPECT_EQ(groups[0].recorded[1].still_ns, 5000 * kMs);
}

TEST(Position, OfSeveralGroups) {
    auto all = stories(2);
    for (Story& story : all) {
        GroupRecord other = story.record().groups[0];
        other.owner = 9;
        other.key = "other key";
        story.record().groups.push_back(other);
    }
    const auto records = records_of(all);
    EXPECT_EQ(find_groups(records, {}).size(), 2u);
}

// Their events lie side by side, and some belong to no context that the record knows.
TEST(Position, OfManyGroupsIsThatOfTheirOwnContexts) {
    constexpr int kGroups = 40, kContexts = 3;  // of each group
    Story story(0, 1);
    ProcessRecord& record = story.record();
    const GroupRecord group = record.groups[0];
    const ContextRecord context = record.contexts[0];
    record.groups.clear();
    record.contexts.clear();
    record.events.clear();
    // Owners are numbered in the order in which groups and contexts were made.
    for (int i = 0; i < kGroups; ++i) {
        record.groups.push_back(group);
        record.groups.back().owner = static_cast<std::uint16_t>(1 + i);
        record.groups.back().key = std::to_string(i);
        record.groups.back().created_ns = i;
    }
    const auto owner_of = [](int i, int c) {
        return static_cast<std::uint16_t>(1 + kGroups + kGroups * c + i);
    };
    for (int c = 0; c < kContexts; ++c) {
        for (int i = 0; i < kGroups; ++i) {
            record.contexts.push_back(context);
            record.contexts.back().owner = owner_of(i, c);
            record.contexts.back().group = static_cast<std::uint16_t>(1 + i);
        }
    }
    std::int64_t at = 0;
    const auto add = [&](int owner, EventKind kind, std::int64_t step) {
        Event event{};
        event.number = record.events.size() + 1;
        event.owner = static_cast<std::uint16_t>(owner);
        event.kind = kind;
        event.step = step;
        event.time_ns = ++at * kMs;
        record.events.push_back(event);
    };
    std::vector<std::vector<std::int64_t>> ends(kGroups);
    for (int i = 0; i < kGroups; ++i) add(1 + i, EventKind::kJoined, -1);
    // Context i % kContexts of group i ends two steps more than the others, and begins another.
    for (int step = 0; step < 4; ++step) {
        for (int i = 0; i < kGroups; ++i) {
            for (int c = 0; c < kContexts; ++c) {
                if (c != i % kContexts && step >= 2) continue;
                add(owner_of(i, c), EventKind::kStepBegin, 10 * i + step);
                if (step == 3) continue;
                add(owner_of(i, c), EventKind::kStepEnd, 10 * i + step);
                if (c == i % kContexts) ends[static_cast<std::size_t>(i)].push_back(at * kMs);
            }
            add(owner_of(kGroups, kContexts), EventKind::kStepBegin, 1'000'000);
        }
    }
    const std::vector<ProcessRecord> records{record};
    const auto groups = find_groups(records, {}, 1);
    ASSERT_EQ(groups.size(), std::size_t{kGroups});
    for (int i = 0; i < kGroups; ++i) {
        const Position& position = groups[static_cast<std::size_t>(i)].recorded[0];
        ASSERT_TRUE(position.group && position.context) << i;
        EXPECT_EQ(position.group->owner, 1 + i);
        EXPECT_EQ(position.context->owner, owner_of(i, i % kContexts)) << i;
        EXPECT_EQ(position.at, Position::At::kBackward) << i;
        EXPECT_EQ(position.step, 10 * i + 3) << i;
        const Progress progress =
            find_progress(groups[static_cast<std::size_t>(i)], position, at * kMs);
        const std::vector<std::int64_t>& its_ends = ends[static_cast<std::size_t>(i)];
        EXPECT_EQ(progress.step_ns, static_cast<double>(its_ends[2] - its_ends[0]) / 2) << i;
    }
}

TEST(Text, IsShort) {
    EXPECT_EQ(duration_text(4.2e9), "4.2 s");
    EXPECT_EQ(duration_text(37e6), "37 ms");
    EXPECT_EQ(bytes_text(12), "12 bytes");
    EXPECT_EQ(bytes_text(1.26e6), "1.3 MB");
    EXPECT_EQ(bytes_text(420e3), "420 kB");
    EXPECT_EQ(ranks_text({2}), "rank 2");
    EXPECT_EQ(ranks_text({0, 1, 3}), "ranks 0, 1 and 3");
}

}  // namespace
}  // namespace libddp::record
