// Groups that take turns: how they are made, what runs at once and what stays in order, how they
// fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "capi/bad_input.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::Each;
using testing::HasSubstr;

namespace round_robin_test {

// Groups of the same ranks.
std::vector<ddp::Group> copies_of(ddp_group* group, std::size_t n) {
    std::vector<ddp::Group> copies;
    BorrowedGroup borrowed(group);
    for (std::size_t i = 0; i < n; ++i) copies.push_back(borrowed.split(0, borrowed.rank()));
    return copies;
}

ddp::Group round_robin(const std::vector<ddp::Group>& groups) {
    std::vector<const ddp::Group*> all;
    for (const auto& group : groups) all.push_back(&group);
    return ddp::Group::round_robin(all);
}

// A work that the program completes, and the same once more to be given away.
class Held {
public:
    Held() { ddp::detail::call(ddp_work_create, std::int64_t{10'000}, &handle_); }
    ~Held() { ddp_work_free(handle_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    ddp::Work follower() const {
        auto nothing = +[](void*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
        ddp_work* out = nullptr;
        ddp::detail::call(ddp_work_then, handle_, nothing, static_cast<void*>(nullptr),
                          static_cast<void (*)(void*)>(nullptr), std::uint32_t{DDP_WORK_ANY_THREAD},
                          &out);
        return ddp::Work(out);
    }
    void complete() {
        ddp::detail::call(ddp_work_complete, handle_, DDP_OK, static_cast<const char*>(nullptr));
    }

private:
    ddp_work* handle_ = nullptr;
};

// The second of two groups goes on while the first is held up.
void expect_two_at_once(ddp::Group& group) {
    std::array<float, 3> sums{1, 1, 1};
    Held held;
    ddp::Work first =
        group.allreduce(&sums[0], 1).then([&held] { return held.follower(); }, DDP_WORK_ANY_THREAD);
    ddp::Work second = group.allreduce(&sums[1], 1);
    ddp::Work third = group.allreduce(&sums[2], 1);
    second.wait(10'000);
    EXPECT_FALSE(third.test()) << "it is behind the first";
    held.complete();
    first.wait();
    third.wait();
    EXPECT_THAT(sums, Each(static_cast<float>(group.world_size())));
}

TEST(RoundRobin, CollectivesOfDifferentGroupsRunAtOnce) {
    for (const char* backend : {"threads", "threads-single", "tcp"})
        on_ranks({2, backend}, [](int rank, ddp_group* group) {
            ddp::Group turns = round_robin(copies_of(group, 2));  // their handles are gone
            EXPECT_EQ(turns.world_size(), 2);
            EXPECT_EQ(turns.rank(), rank);
            expect_two_at_once(turns);
            ddp::Group part = turns.split(0, -rank);
            EXPECT_EQ(part.rank(), 1 - rank);
            expect_two_at_once(part);
            turns.barrier();
        });
}

// A thread that waits for one of the groups would have to be inside operations of the others.
TEST(RoundRobin, RefusesABackendThatWorksOnlyOnThreadsThatWait) {
    on_ranks({2, "threads-caller"}, [](int, ddp_group* group) {
        ddp_group* turns = nullptr;
        expect_refused({{"round_robin",
                         DDP_ERROR_UNSUPPORTED,
                         {"threads-caller"},
                         calling(ddp_group_round_robin, &group, 1, &turns)}});
        float sum = 1;
        EXPECT_EQ(ddp_allreduce(group, nullptr, &sum, 1, DDP_F32, DDP_SUM, nullptr, nullptr),
                  DDP_OK);
        EXPECT_EQ(sum, 2);
    });
}

TEST(RoundRobin, OneCallMakesThemToo) {
    RankOptions options(3, "threads");
    options.round_robin = 2;
    on_ranks(options, [](int rank, ddp_group* group) {
        BorrowedGroup turns(group);
        expect_two_at_once(turns);
        ddp::Group lonely = turns.split(rank);
        EXPECT_EQ(lonely.world_size(), 1);
        expect_two_at_once(lonely);
        turns.barrier();
    });
}

TEST(RoundRobin, ABarrierIsOneForAllGroups) {
    on_ranks({2}, [](int, ddp_group* group) {
        ddp::Group turns = round_robin(copies_of(group, 3));
        for (int before = 0; before < 4; ++before) {  // whoever's turn it is
            float sum = 1;
            Held held;
            ddp::Work first = turns.allreduce(&sum, 1).then([&held] { return held.follower(); },
                                                            DDP_WORK_ANY_THREAD);
            ddp_work* handle = nullptr;
            ddp::detail::call(ddp_barrier, turns.get(), &handle);
            ddp::Work barrier(handle);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            EXPECT_FALSE(barrier.test());
            held.complete();
            barrier.wait();
            EXPECT_TRUE(first.test());
        }
    });
}

// Each rank waits for another chain first, and the chains need the waiting thread.
TEST(RoundRobin, ChainsMayBeWaitedForInAnyOrder) {
    for (const char* backend : {"threads", "tcp"})
        on_ranks({3, backend}, [](int rank, ddp_group* group) {
            ddp::Group turns = round_robin(copies_of(group, 3));
            for (int round = 0; round < 30; ++round) {
                std::vector<std::vector<float>> data(6, std::vector<float>(100, 1));
                std::vector<ddp::Work> works;
                for (auto& d : data)
                    works.push_back(turns.allreduce(d.data(), d.size()).then([&turns, &d] {
                        return turns.allreduce(d.data(), d.size());
                    }));
                for (std::size_t i = 0; i < works.size(); ++i)
                    works[(i + static_cast<std::size_t>(rank)) % works.size()].wait();
                for (const auto& d : data) ASSERT_THAT(d, Each(9));
            }
            turns.barrier();
        });
}

// ddp_work_test alone must bring a chain of another group forward too.
TEST(RoundRobin, ChainsMayBePolledInAnyOrder) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        ddp::Group turns = round_robin(copies_of(group, 2));
        float data[2] = {1, 1};
        std::vector<ddp::Work> works;
        for (float& d : data)
            works.push_back(
                turns.allreduce(&d, 1).then([&turns, &d] { return turns.allreduce(&d, 1); }));
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (std::size_t i : {std::size_t(rank), std::size_t(1 - rank)})
            while (!works[i].test() && std::chrono::steady_clock::now() < give_up)
                std::this_thread::yield();
        EXPECT_THAT(data, Each(4));
    });
}

TEST(RoundRobin, GroupsMayBeUsedAgainAndByThemselves) {
    on_ranks({2}, [](int, ddp_group* group) {
        const std::vector<ddp::Group> groups = copies_of(group, 2);
        for (int round = 0; round < 3; ++round) {
            ddp::Group turns = round_robin(groups);
            expect_two_at_once(turns);
            ddp_group* handles[] = {groups[1].get()};
            ddp_group* out = nullptr;
            expect_refused({{"a part",
                             kInvalid,
                             {"groups[0]", "part of another"},
                             calling(ddp_group_round_robin, handles, 1, &out)}});
            float sum = 1;
            ddp::detail::call(ddp_allreduce, groups[0].get(), static_cast<const void*>(nullptr),
                              static_cast<void*>(&sum), std::size_t{1}, DDP_F32, DDP_SUM,
                              static_cast<ddp_work**>(nullptr));
            EXPECT_EQ(sum, 2);
        }
    });
}

TEST(RoundRobin, BackendsMayDiffer) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        ddp_store* store = nullptr;
        ddp::detail::call(ddp_group_store, group, &store);
        const RankOptions plain(2, "threads-plain");  // the options point into it
        ddp_group_options options = group_options(plain, rank, nullptr);
        options.store = store;
        options.group_name = "plain";
        {
            std::vector<ddp::Group> groups = copies_of(group, 1);
            groups.emplace_back(options);
            ddp::Group turns = round_robin(groups);
            EXPECT_STREQ(ddp_group_backend(turns.get()), "threads,threads-plain");
            auto buckets = ddp::Context::defaults();
            buckets.bucket_cap_bytes = buckets.first_bucket_cap_bytes = 40;
            Model model(turns.get(), {10, 20, 3, 7}, true, buckets);
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                for (int i = model.count() - 1; i >= 0; --i) {
                    model.fill(i, static_cast<float>(2 + 4 * rank));
                    model.context.grad_ready(i);
                }
                model.context.finalize();
                for (int i = 0; i < model.count(); ++i) EXPECT_TRUE(model.holds(i, 4));
            }
        }
        ddp_store_free(store);
    });
}

// ---- what ranks must agree on

// `chosen`: which of three groups this rank gives.
void expect_disagreement(const std::vector<std::vector<std::size_t>>& chosen, const char* words) {
    std::mutex mutex;
    std::set<std::string> messages;
    on_ranks({2}, [&](int rank, ddp_group* group) {
        const std::vector<ddp::Group> groups = copies_of(group, 3);
        std::vector<ddp_group*> mine;
        for (std::size_t i : chosen[static_cast<std::size_t>(rank)])
            mine.push_back(groups[i].get());
        ddp_group* out = nullptr;
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_group_round_robin(mine.data(), mine.size(), &out, &error),
                  DDP_ERROR_MISMATCH);
        const Facts facts = take_facts(error);
        EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, 1}));
        EXPECT_THAT(facts.message, HasSubstr(words));
        EXPECT_EQ(out, nullptr);
        for (ddp_group* given : mine)
            EXPECT_EQ(ddp_group_status(given, nullptr), DDP_ERROR_MISMATCH);
        EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK) << "it was not given";
        const std::lock_guard lock(mutex);
        messages.insert(facts.message);
    });
    EXPECT_EQ(messages.size(), 1u) << "every rank says the same";
}

TEST(RoundRobin, RanksMustGiveAsManyGroups) {
    expect_disagreement({{0, 1}, {0, 1, 2}}, "rank 0 gives 2 groups and rank 1 gives 3");
    expect_disagreement({{2, 1, 0}, {2}}, "rank 0 gives 3 groups and rank 1 gives 1");
}

TEST(RoundRobin, RanksMustGiveTheSameGroupsInTheSameOrder) {
    expect_disagreement({{0, 1}, {1, 0}}, "different groups, or the same in another order");
    expect_disagreement({{0, 1, 2}, {0, 2, 1}}, "different groups, or the same in another order");
    expect_disagreement({{0, 1}, {0, 2}}, "different groups, or the same in another order");
}

TEST(RoundRobin, RanksMustAskForAsManyWhenTheyJoin) {
    // Each rank's options are its own, so the two threads join by themselves.
    on_ranks({2}, [](int rank, ddp_group* group) {
        ddp_store* store = nullptr;
        ddp::detail::call(ddp_group_store, group, &store);
        const RankOptions plain(2);  // the options point into it
        ddp_group_options options = group_options(plain, rank, nullptr);
        options.store = store;
        options.group_name = "turns";
        options.round_robin = rank == 0 ? 2 : 3;
        ddp_group* out = nullptr;
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_group_create(&options, &out, &error), DDP_ERROR_MISMATCH);
        const Facts facts = take_facts(error);
        EXPECT_GE(facts.rank, 0) << facts;
        EXPECT_THAT(facts.message, HasSubstr("round_robin"));
        BorrowedGroup(group).barrier();
        ddp_store_free(store);
    });
}

// ---- failure

TEST(RoundRobin, WhatBreaksOneGroupBreaksAllEverywhere) {
    for (std::size_t broken : {std::size_t{0}, std::size_t{2}}) {
        std::atomic<int> waiting{0};
        on_ranks({3, "tcp"}, [&](int rank, ddp_group* group) {
            std::vector<ddp::Group> groups = copies_of(group, 3);
            ddp::Group turns = round_robin(groups);
            std::vector<ddp::Work> works;
            std::vector<float> data(6, 1);
            // The last rank never comes.
            for (auto& d : data)
                if (rank < 2) works.push_back(turns.allreduce(&d, 1));
            waiting += rank < 2;
            const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (waiting < 2 && std::chrono::steady_clock::now() < give_up)
                std::this_thread::yield();
            if (rank == 2) groups[broken].abort("enough");
            auto check = [](auto&& call) {
                const Facts facts = facts_of(call);
                EXPECT_EQ(facts.status, DDP_ERROR_ABORTED) << facts;
                EXPECT_EQ(facts.rank, 2) << facts;
            };
            for (auto& work : works) check([&] { work.wait(); });
            while (ddp_group_status(turns.get(), nullptr) == DDP_OK &&
                   std::chrono::steady_clock::now() < give_up)
                std::this_thread::yield();
            check([&] { turns.barrier(); });
            for (const auto& each : groups) {
                while (ddp_group_status(each.get(), nullptr) == DDP_OK &&
                       std::chrono::steady_clock::now() < give_up)
                    std::this_thread::yield();
                EXPECT_EQ(ddp_group_status(each.get(), nullptr), DDP_ERROR_ABORTED);
            }
            EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK) << "it takes no part";
        });
    }
}

// Every rank breaks another group at the same time: one verdict.
TEST(RoundRobin, AllRanksGiveTheSameReason) {
    for (int round = 0; round < 20; ++round) {
        std::mutex mutex;
        std::set<std::string> reasons;
        std::atomic<int> ready{0};
        on_ranks({3}, [&](int rank, ddp_group* group) {
            std::vector<ddp::Group> groups = copies_of(group, 3);
            ddp::Group turns = round_robin(groups);
            float x = 1;
            ++ready;
            while (ready < 3) std::this_thread::yield();
            groups[static_cast<std::size_t>(rank + round) % 3].abort("by rank " +
                                                                     std::to_string(rank));
            ddp_error* error = nullptr;
            for (int turn = 0; turn < 3; ++turn) {
                EXPECT_EQ(
                    ddp_allreduce(turns.get(), nullptr, &x, 1, DDP_F32, DDP_SUM, nullptr, &error),
                    DDP_ERROR_ABORTED);
                const std::string reason = take_message(error);
                const std::lock_guard lock(mutex);
                reasons.insert(reason);
            }
        });
        EXPECT_EQ(reasons.size(), 1u) << testing::PrintToString(reasons);
    }
}

TEST(RoundRobin, ABrokenGroupIsRefused) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        const std::vector<ddp::Group> groups = copies_of(group, 2);
        if (rank == 0) ddp_group_abort(groups[1].get(), "before", nullptr);
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (ddp_group_status(groups[1].get(), nullptr) == DDP_OK &&
               std::chrono::steady_clock::now() < give_up)
            std::this_thread::yield();
        EXPECT_EQ(facts_of([&] { round_robin(groups); }), (Facts{DDP_ERROR_ABORTED, 0}));
    });
}

// The other rank waits in the group that is well.
TEST(RoundRobin, ABrokenGroupIsRefusedOnEveryRank) {
    std::atomic<bool> inside{false};
    on_ranks({2}, [&](int rank, ddp_group* group) {
        const std::vector<ddp::Group> groups = copies_of(group, 2);
        if (rank == 1) {
            while (!inside) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            ddp_group_abort(groups[1].get(), "meanwhile", nullptr);
        }
        inside = true;
        EXPECT_EQ(facts_of([&] { round_robin(groups); }), (Facts{DDP_ERROR_ABORTED, 1}));
        for (const auto& given : groups)
            EXPECT_EQ(ddp_group_status(given.get(), nullptr), DDP_ERROR_ABORTED);
    });
}

TEST(RoundRobin, ADisagreementBreaksAllGroups) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* group) {
        ddp::Group turns = round_robin(copies_of(group, 2));
        std::vector<float> data(100, 1);
        turns.allreduce(data.data(), 100).wait();
        const Facts facts =
            facts_of([&] { turns.allreduce(data.data(), rank == 1 ? 99 : 100).wait(); });
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        EXPECT_GE(facts.rank, 0) << facts;
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_group_status(turns.get(), &error), DDP_ERROR_MISMATCH);
        EXPECT_EQ(take_facts(error), facts);
    });
}

}  // namespace round_robin_test
