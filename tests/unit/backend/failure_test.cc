// Disagreement, abort, timeout and lost peers.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <utility>

#include "unit/backend/fake_host.h"
#include "util/host.h"

namespace libddp {
namespace {

using namespace testing_backend;
using Clock = std::chrono::steady_clock;

void sleep_ms(int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

constexpr std::int64_t kAbortMs = 100;  // what the interface promises

std::size_t entries(const char* folder) {
    std::size_t count = 0;
    DIR* dir = opendir(folder);
    while (readdir(dir)) ++count;
    closedir(dir);
    return count;
}

class Backends : public testing::TestWithParam<Kind> {};

TEST_P(Backends, EveryRankSeesTheDifference) {
    for (int size : {2, 3, 5}) {
        World world(size, GetParam());
        ASSERT_TRUE(world.connected());
        world.each([&](Rank& rank) {
            const bool odd = rank.rank() == 1;
            ASSERT_EQ(rank.match("allreduce 100"), DDP_OK);
            ASSERT_EQ(rank.match(odd ? "allreduce 200" : "allreduce 300"), DDP_ERROR_MISMATCH);
            EXPECT_EQ(rank.theirs, odd ? "allreduce 300" : "allreduce 200");
            EXPECT_EQ(rank.their_rank == 1, !odd);
            // Nothing was exchanged, and nothing will be.
            std::vector<float> data(odd ? 200 : 300);
            EXPECT_EQ(rank.allreduce(data), DDP_ERROR_MISMATCH);
            EXPECT_EQ(rank.barrier(), DDP_ERROR_MISMATCH);
        });
    }
}

// The first to see it leaves at once; the others still learn of the difference, not of a broken
// connection.
TEST_P(Backends, ALateRankStillSeesTheDifference) {
    for (int repeat = 0; repeat < 5; ++repeat) {
        World world(3, GetParam());
        ASSERT_TRUE(world.connected());
        world.each([&](Rank& rank) {
            if (rank.rank() == 2) sleep_ms(30);
            EXPECT_EQ(rank.match(rank.rank() == 1 ? "a" : "b"), DDP_ERROR_MISMATCH)
                << rank.failure.message;
            rank.destroy();
        });
    }
}

// Bytes that the last rank still sends go nowhere: the operation that waited for them has ended,
// and with it the memory that it used. AddressSanitizer sees it.
TEST_P(Backends, AfterADifferenceNothingIsWrittenAnyMore) {
    for (const std::size_t count : {100, 1 << 20}) {
        World world(3, GetParam());
        ASSERT_TRUE(world.connected());
        world.each([&](Rank& rank) {
            if (rank.rank() == 2) sleep_ms(30);
            std::vector<float> data(count);
            const std::string signature = rank.rank() == 1 ? "a" : "b";
            EXPECT_EQ(rank.compared_allreduce(data, signature), DDP_ERROR_MISMATCH)
                << rank.failure.message;
            // what rank 2 sends has come
            if (rank.rank() == 0) sleep_ms(static_cast<int>(with_slack(100)));
            rank.destroy();
        });
    }
}

class Algorithms : public testing::TestWithParam<Kind> {};

// Blocks all ranks but the last, which never comes, aborts rank 0, and returns how long the slowest
// took to notice.
std::int64_t slowest_after_abort(World& world) {
    std::atomic<std::int64_t> aborted_at{0}, slowest{0};
    std::thread aborter([&] {
        sleep_ms(100);
        aborted_at = Clock::now().time_since_epoch().count();
        std::thread again([&] { world[0].abort(); });
        world[0].abort();
        again.join();
        world[0].abort();
    });
    each_rank(world.size() - 1, [&](int r) {
        std::vector<float> data(1 << 20);
        const ddp_status status = world[r].allreduce(data);
        const std::int64_t late = elapsed_ms(Clock::time_point(Clock::duration(aborted_at)));
        std::int64_t seen = slowest;
        while (late > seen && !slowest.compare_exchange_weak(seen, late)) {
        }
        EXPECT_EQ(status, r == 0 ? DDP_ERROR_ABORTED : DDP_ERROR_RANK_FAILED)
            << world[r].failure.message;
    });
    aborter.join();
    return slowest;
}

TEST_P(Algorithms, AbortWakesABlockedCollective) {
    for (int size : {2, 4}) {
        // The best of ten, because this machine may be busy with something else for a while.
        std::int64_t best = INT64_MAX;
        for (int attempt = 0; attempt < 10 && best >= with_slack(kAbortMs); ++attempt) {
            World world(size, GetParam());
            ASSERT_TRUE(world.connected());
            best = std::min(best, slowest_after_abort(world));
            std::vector<float> data(10);
            EXPECT_EQ(world[0].allreduce(data), DDP_ERROR_ABORTED);
            EXPECT_EQ(world[0].match("x"), DDP_ERROR_ABORTED);
        }
        EXPECT_LT(best, with_slack(kAbortMs));
    }
}

// While data streams at full speed, and in the middle of whatever the others do.
TEST_P(Algorithms, AbortWhileDataStreams) {
    World world(3, GetParam());
    ASSERT_TRUE(world.connected());
    std::atomic<bool> aborted{false};
    std::thread aborter([&] {
        sleep_ms(150);
        const auto begin = Clock::now();
        world[1].abort();
        aborted = true;
        EXPECT_LT(elapsed_ms(begin), with_slack(1000));
    });
    world.each([&](Rank& rank) {
        std::vector<float> data(2 << 20);
        while (rank.allreduce(data) == DDP_OK)
            if (aborted && rank.rank() == 1) ADD_FAILURE() << "went on after the abort";
        EXPECT_EQ(rank.status, rank.rank() == 1 ? DDP_ERROR_ABORTED : DDP_ERROR_RANK_FAILED);
    });
    aborter.join();
}

TEST_P(Algorithms, TimesOutWithoutARank) {
    World world(3, GetParam());
    ASSERT_TRUE(world.connected());
    std::atomic<int> timeouts{0};
    each_rank(2, [&](int r) {
        std::vector<float> data(100000);
        world[r].timeout_ms = 300;
        const auto begin = Clock::now();
        const ddp_status status = world[r].allreduce(data);
        EXPECT_LT(elapsed_ms(begin), with_slack(1000));
        // The first to give up breaks the connection of the other, whose own time may then not be
        // over.
        if (status == DDP_ERROR_TIMEOUT) {
            EXPECT_GE(elapsed_ms(begin), 250);
            ++timeouts;
        } else {
            EXPECT_EQ(status, DDP_ERROR_RANK_FAILED) << world[r].failure.message;
        }
        EXPECT_EQ(world[r].barrier(), status) << "a later call returns the first error";
    });
    EXPECT_GE(timeouts, 1);
}

TEST_P(Algorithms, ARankThatLeavesMidwayEndsTheOthers) {
    World world(4, GetParam());
    ASSERT_TRUE(world.connected());
    std::atomic<std::int64_t> left_at{0};
    world.each([&](Rank& rank) {
        std::vector<float> data(300000, 1);
        if (rank.rank() == 2) {
            for (int i = 0; i < 3; ++i) EXPECT_EQ(rank.allreduce(data), DDP_OK);
            left_at = Clock::now().time_since_epoch().count();
            rank.destroy();
            return;
        }
        while (rank.allreduce(data) == DDP_OK) {
        }
        EXPECT_EQ(rank.status, DDP_ERROR_RANK_FAILED) << rank.failure.message;
        EXPECT_TRUE(rank.failure.rank == 2 || rank.failure.rank == -1) << rank.failure.rank;
        const Clock::duration late = Clock::now().time_since_epoch() - Clock::duration(left_at);
        EXPECT_LT(std::chrono::duration_cast<std::chrono::milliseconds>(late).count(),
                  with_slack(1000));
    });
}

INSTANTIATE_TEST_SUITE_P(All, Algorithms,
                         testing::Values(Kind{"direct", gloo_backend(), "algorithm=direct"},
                                         Kind{"ring", gloo_backend(), "algorithm=ring"},
#ifndef DDP_SANITIZED  // to our own code, the same as the ring
                                         Kind{"bcube", gloo_backend(), "algorithm=bcube"},
#endif
                                         Kind{"tcp", tcp_backend()},
                                         Kind{"tcp_ring", tcp_backend(), "algorithm=ring"},
                                         Kind{"tcp_plain", tcp_backend(), "wire=plain"},
                                         Kind{"shm", shm_backend()}),
                         [](const auto& instance) { return name_of(instance); });

// A rank that was stopped while the others waited for it, gave up and went on: their memory holds
// something else by now, or is freed. Whatever the rank finds there, it may not return OK with it.
class Sleepers : public testing::TestWithParam<Kind> {};

TEST_P(Sleepers, ARankThatComesAfterTheOthersGaveUpReturnsNoOtherNumbers) {
    constexpr int kWorld = 4, kSleeper = 3;
    for (ddp_collective_kind kind :
         {DDP_COLLECTIVE_ALLREDUCE, DDP_COLLECTIVE_BROADCAST, DDP_COLLECTIVE_ALLGATHER,
          DDP_COLLECTIVE_REDUCE_SCATTER, DDP_COLLECTIVE_ALL_TO_ALL}) {
        for (std::size_t count : {16, 5000, 400'000}) {
            SCOPED_TRACE(testing::Message()
                         << "collective " << kind << ", " << count << " numbers");
            World world(kWorld, GetParam());
            ASSERT_TRUE(world.connected());
            const bool exchange = kind == DDP_COLLECTIVE_ALL_TO_ALL;
            const std::size_t sends =
                kind == DDP_COLLECTIVE_REDUCE_SCATTER || exchange ? count * kWorld : count;
            const std::size_t recvs =
                kind == DDP_COLLECTIVE_ALLGATHER || exchange ? count * kWorld : count;
            std::vector<std::vector<float>> owned(2 * kWorld);
            const auto memory = [&](int rank, int which, std::size_t size) {
                if (GetParam().allocated)
                    return static_cast<float*>(world[rank].allocate(size * sizeof(float)));
                auto& own = owned[static_cast<std::size_t>(2 * rank + which)];
                own.resize(size);
                return own.data();
            };
            const auto run = [&](int rank, float* send, float* recv) {
                return world[rank].run(kind, DDP_F32, DDP_SUM, send, recv, count);
            };
            each_rank(kWorld - 1, [&](int r) {
                float* send = memory(r, 0, sends);
                float* recv = memory(r, 1, recvs);
                std::fill_n(send, sends, static_cast<float>(r + 1));
                world[r].timeout_ms = 100;
                // a broadcast needs nothing of the sleeper
                if (run(r, send, recv) == DDP_OK) return;
                std::fill_n(send, sends, -1000.0f);  // the program goes on
                std::fill_n(recv, recvs, -1000.0f);
                if (GetParam().allocated) {
                    world[r].deallocate(send);
                    world[r].deallocate(recv);
                }
            });
            for (int r = 0; r < kSleeper; ++r) world[r].destroy();
            float* send = memory(kSleeper, 0, sends);
            float* recv = memory(kSleeper, 1, recvs);
            std::fill_n(send, sends, static_cast<float>(kSleeper + 1));
            world[kSleeper].timeout_ms = 2000;
            if (run(kSleeper, send, recv) != DDP_OK) continue;
            for (std::size_t i = 0; i < recvs; ++i) {
                const float right = kind == DDP_COLLECTIVE_BROADCAST ? 1.0f
                                    : kind == DDP_COLLECTIVE_ALLGATHER || exchange
                                        ? static_cast<float>(i / count + 1)
                                        : 10.0f;
                ASSERT_EQ(recv[i], right) << "number " << i;
            }
            EXPECT_STRNE(GetParam().backend->name, "shm") << "the others have given up";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, Sleepers,
    testing::Values(Kind{"tcp", tcp_backend()}, Kind{"shm", shm_backend()},
                    Kind{"shm_allocated", shm_backend(), "", true},
                    Kind{"hierarchical", hierarchical_backend(), "", false, 2},
                    Kind{"hierarchical_allocated", hierarchical_backend(), "", true, 2},
                    Kind{"hierarchical_one_host", hierarchical_backend(), "", true}),
    [](const auto& instance) { return name_of(instance); });

TEST_P(Backends, TimeoutOfBarrierAndMatchNameTheMissing) {
    for (bool barrier : {true, false}) {
        World world(4, GetParam());
        ASSERT_TRUE(world.connected());
        std::atomic<int> named{0};
        each_rank(2, [&](int r) {
            world[r].timeout_ms = 300;
            const ddp_status status = barrier ? world[r].barrier() : world[r].match("x");
            if (status == DDP_ERROR_TIMEOUT) {
                EXPECT_GE(world[r].failure.rank, 2);
                ++named;
            }
        });
        EXPECT_GE(named, 1);
    }
}

// On two hosts, in turn: rank 1 waits for rank 3 on its host, where they are the first and the
// second; ranks 0 and 2 wait for the other host.
TEST(Hierarchical, TimeoutsNumberRanksAsTheGroupDoes) {
    World world(4, Kind{"hierarchical", hierarchical_backend(), "", false, 2});
    ASSERT_TRUE(world.connected());
    each_rank(3, [&](int r) {
        world[r].timeout_ms = r == 1 ? 300 : 600;
        world[r].match("x");
        // the first to give up breaks the connections of the others
        if (world[r].status != DDP_ERROR_TIMEOUT) return;
        EXPECT_EQ(world[r].failure.rank, r == 0 ? 1 : 3) << world[r].failure.message;
    });
    EXPECT_EQ(world[1].status, DDP_ERROR_TIMEOUT);
}

// Hosts of three ranks and two: rank 4 has no rail. Rank 2 says where it is, and then does not
// come. So each rank waits in another part of create.
TEST(Hierarchical, ABrokenGroupEndsEveryWaitOfCreate) {
    MemoryStore store;
    store.set("topology/2", host_id());
    std::thread breaker([&] {
        sleep_ms(300);
        store.break_with(DDP_ERROR_RANK_FAILED);
    });
    const auto begin = Clock::now();
    each_rank(4, [&](int i) {
        Rank rank(store, i < 2 ? i : i + 1, 5, "", 20'000, 0, hierarchical_backend(), 2);
        EXPECT_EQ(rank.status, DDP_ERROR_RANK_FAILED)
            << rank.rank() << ": " << rank.failure.message;
    });
    EXPECT_LT(elapsed_ms(begin), 300 + with_slack(2000));
    breaker.join();
}

TEST(SharedMemory, ARankThatLeavesEndsTheOthersAndKeepsItsMemory) {
    const auto leave_one = [](const Kind& kind) {
        World world(4, kind);
        ASSERT_TRUE(world.connected());
        auto* memory = static_cast<char*>(world[0].allocate(1000));
        kind.backend->leave(world[0].transport());
        const auto begin = Clock::now();
        each_rank(3, [&](int other) {
            Rank& rank = world[other + 1];
            EXPECT_EQ(rank.barrier(), DDP_ERROR_RANK_FAILED) << rank.failure.message;
        });
        EXPECT_LT(elapsed_ms(begin), with_slack(5000));
        memory[999] = 1;
        world[0].deallocate(memory);
    };
    leave_one({"shm", shm_backend()});
    leave_one({"hierarchical", hierarchical_backend(), "", false, 2});
}

// Rank 1 has come, but the thread that moves its bytes is held up, so rank 0 only sends.
TEST(Tcp, ATimeoutNamesTheRankThatTakesNothing) {
    World world(2, Kind{"tcp", tcp_backend()});
    ASSERT_TRUE(world.connected());
    std::promise<void> held, ended;
    world[1].interrupted = [&held, over = ended.get_future().share()] {
        held.set_value();
        return over.wait_for(std::chrono::milliseconds(with_slack(10'000))) ==
               std::future_status::ready;
    };
    auto is_held = held.get_future();
    each_rank(2, [&](int r) {
        std::vector<char> data(std::size_t{64} << 20);
        if (r == 0) {
            EXPECT_EQ(is_held.wait_for(std::chrono::milliseconds(with_slack(10'000))),
                      std::future_status::ready);
            world[0].timeout_ms = 300;
        }
        const ddp_status status = world[r].run(DDP_COLLECTIVE_BROADCAST, DDP_U8, DDP_SUM,
                                               data.data(), data.data(), data.size());
        if (r == 0) ended.set_value();
        EXPECT_EQ(status, r == 0 ? DDP_ERROR_TIMEOUT : DDP_ERROR_INTERRUPTED)
            << world[r].failure.message;
    });
    EXPECT_EQ(world[0].failure.rank, 1) << world[0].failure.message;
}

TEST_P(Backends, TimeoutOfOtherCollectives) {
    for (ddp_collective_kind kind : {DDP_COLLECTIVE_BROADCAST, DDP_COLLECTIVE_ALLGATHER,
                                     DDP_COLLECTIVE_REDUCE_SCATTER, DDP_COLLECTIVE_ALL_TO_ALL}) {
        World world(2, GetParam());
        ASSERT_TRUE(world.connected());
        std::vector<float> send(2000), recv(2000);
        world[1].timeout_ms = 200;
        const auto begin = Clock::now();
        EXPECT_EQ(world[1].run(kind, DDP_F32, DDP_SUM, send.data(), recv.data(), 1000),
                  DDP_ERROR_TIMEOUT);
        EXPECT_LT(elapsed_ms(begin), with_slack(1000));
    }
}

// Bytes of a rank arrive although it leaves at once: a finished collective is finished for
// everyone.
TEST_P(Backends, DestroyDoesNotTakeBackWhatWasSent) {
    World world(3, GetParam());
    ASSERT_TRUE(world.connected());
    world.each([&](Rank& rank) {
        std::vector<float> data(2 << 20, rank.rank() == 0 ? 7.0f : 0.0f);
        if (rank.rank() != 0) sleep_ms(20);
        EXPECT_EQ(rank.run(DDP_COLLECTIVE_BROADCAST, DDP_F32, DDP_SUM, data.data(), data.data(),
                           data.size()),
                  DDP_OK)
            << rank.failure.message;
        EXPECT_EQ(data, std::vector<float>(2 << 20, 7.0f));
        if (rank.rank() == 0) rank.destroy();
    });
}

TEST_P(Algorithms, DestroyLeavesNoThreadAndNoDescriptor) {
    { World warm_up(3, GetParam()); }
    std::size_t threads = entries("/proc/self/task"), before = 0;
    for (int tries = 0; threads != before && tries < 100; ++tries) {
        sleep_ms(50);  // threads of an earlier test may be about to exit
        before = std::exchange(threads, entries("/proc/self/task"));
    }
    const std::size_t descriptors = entries("/proc/self/fd");
    for (int repeat = 0; repeat < 2; ++repeat) {
        World world(4, GetParam());
        ASSERT_TRUE(world.connected());
        world.each([](Rank& rank) { EXPECT_EQ(rank.barrier(), DDP_OK); });
    }
    for (int tries = 0; entries("/proc/self/task") > threads && tries < 1000; ++tries)
        sleep_ms(10);  // exited, not yet reaped
    EXPECT_LE(entries("/proc/self/task"), threads);
    EXPECT_EQ(entries("/proc/self/fd"), descriptors);
}

TEST_P(Backends, DestroyDoesNotWaitForPeers) {
    World world(4, GetParam());
    ASSERT_TRUE(world.connected());
    const auto begin = Clock::now();
    world[1].destroy();
    EXPECT_LT(elapsed_ms(begin), with_slack(500));
}

TEST_P(Backends, DestroyAbortFromManyThreadsMeanwhile) {
    for (int repeat = 0; repeat < 10; ++repeat) {
        World world(2, GetParam());
        ASSERT_TRUE(world.connected());
        void* transport = world[0].transport();
        std::atomic<bool> stop{false};
        std::vector<std::thread> aborters;
        for (int i = 0; i < 3; ++i)
            aborters.emplace_back([&] {
                while (!stop) GetParam().backend->abort(transport);
            });
        sleep_ms(5);
        world[0].destroy();
        stop = true;
        for (auto& thread : aborters) thread.join();
    }
}

// The tests' own threads: an exception in one is a failed test, and not the end of the program.
TEST(EachRank, ThrowsWhatARankThrewWhenAllHaveEnded) {
    std::atomic<int> ended{0};
    const auto body = [&](int rank) {
        if (rank == 1) throw std::runtime_error("rank 1 has something against it");
        sleep_ms(20);
        ++ended;
    };
    EXPECT_THROW(each_rank(3, body), std::runtime_error);
    EXPECT_EQ(ended, 2);
}

INSTANTIATE_TEST_SUITE_P(All, Backends,
                         testing::Values(Kind{"gloo", gloo_backend()}, Kind{"tcp", tcp_backend()},
                                         Kind{"tcp_ring", tcp_backend(), "algorithm=ring"},
                                         Kind{"shm", shm_backend()}),
                         [](const auto& instance) { return name_of(instance); });

}  // namespace
}  // namespace libddp
