// The collectives of a group against plain references: every dtype, every op, in place and not,
// several backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <complex>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/ranks.h"

namespace {

// A type of the program's own, as in the header's example.
struct Half {
    std::uint16_t bits;
};

}  // namespace

template <>
struct ddp::dtype_of<Half> : ddp::dtype_constant<DDP_F16> {};

namespace collectives_test {

struct Case {
    int world;
    const char* backend;
    const char* options;
    unsigned groups = 1;
};

class CollectivesTest : public testing::TestWithParam<Case> {
protected:
    RankOptions ranks() const {
        RankOptions o;
        o.world = GetParam().world;
        o.backend = GetParam().backend;
        o.backend_options = GetParam().options;
        o.round_robin = GetParam().groups;
        return o;
    }
    int world() const { return GetParam().world; }
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
    std::string name =
        std::string(info.param.backend) + "_" + info.param.options + "_" +
        std::to_string(info.param.world) +
        (info.param.groups > 1 ? "_round_robin_" + std::to_string(info.param.groups) : "");
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, CollectivesTest,
    testing::Values(Case{1, "tcp", ""}, Case{2, "tcp", ""}, Case{3, "gloo", ""},
                    Case{3, "tcp", "algorithm=ring"}, Case{4, "gloo", "algorithm=bcube"},
                    Case{3, "threads", ""}, Case{4, "threads-plain", ""},
                    Case{2, "threads-single", ""}, Case{3, "threads-caller", ""},
                    Case{1, "shm", ""}, Case{1, "hierarchical", ""}, Case{3, "shm", ""},
                    Case{1, "threads", "", 3}, Case{2, "tcp", "", 2}, Case{3, "threads", "", 3},
                    Case{4, "threads-single", "", 2}, Case{2, "shm", "", 2}),
    name_of);

using ddp::detail::call;

constexpr ddp_work** kWait = nullptr;

// Small integers, exact in every dtype; rank 0 has 1, 2, 3, 1, 2, 3, ..., rank 1 starts at 2, and
// so on.
double input(int rank, size_t i) {
    return static_cast<double>(1 + (static_cast<size_t>(rank) + i) % 3);
}

double expected(ddp_reduce_op op, int world, size_t i) {
    double value = input(0, i);
    for (int r = 1; r < world; ++r) {
        double x = input(r, i);
        if (op == DDP_SUM || op == DDP_AVG) value += x;
        if (op == DDP_PROD) value *= x;
        if (op == DDP_MIN) value = std::min(value, x);
        if (op == DDP_MAX) value = std::max(value, x);
    }
    return op == DDP_AVG ? value / world : value;
}

template <class T>
void check_type(ddp_group* group, int rank, int world, ddp_dtype dtype, bool exact_average) {
    for (ddp_reduce_op op : {DDP_SUM, DDP_AVG, DDP_PROD, DDP_MIN, DDP_MAX}) {
        if (op == DDP_AVG && !exact_average) continue;
        for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}}) {
            std::vector<T> in(count), out(count, T(9));
            for (size_t i = 0; i < count; ++i) in[i] = static_cast<T>(input(rank, i));
            auto kept = in;
            call(ddp_allreduce, group, static_cast<const void*>(in.data()),
                 static_cast<void*>(out.data()), count, dtype, op, kWait);
            EXPECT_EQ(in, kept) << "the input stays";
            call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                 static_cast<void*>(in.data()), count, dtype, op, kWait);
            for (size_t i = 0; i < count; ++i) {
                ASSERT_EQ(out[i], static_cast<T>(expected(op, world, i)))
                    << "op " << op << " at " << i;
                ASSERT_EQ(in[i], out[i]);
            }
        }
    }
}

TEST_P(CollectivesTest, AllreduceOfEveryTypeAndOp) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        const bool power_of_two = (world() & (world() - 1)) == 0;
        check_type<float>(group, rank, world(), DDP_F32, power_of_two);
        check_type<double>(group, rank, world(), DDP_F64, power_of_two);
        check_type<int32_t>(group, rank, world(), DDP_I32, true);
        check_type<int64_t>(group, rank, world(), DDP_I64, true);
        check_type<uint8_t>(group, rank, world(), DDP_U8, true);
    });
}

TEST_P(CollectivesTest, HalvesAndComplexNumbers) {
    on_ranks(ranks(), [&](int, ddp_group* group) {
        // f16 1.5 is 0x3e00, bf16 1.5 is 0x3fc0. The average of equal values is that value,
        // exactly.
        std::vector<uint16_t> halves(33, 0x3e00), brains(33, 0x3fc0);
        call(ddp_allreduce, group, static_cast<const void*>(nullptr),
             static_cast<void*>(halves.data()), size_t{33}, DDP_F16, DDP_AVG, kWait);
        call(ddp_allreduce, group, static_cast<const void*>(nullptr),
             static_cast<void*>(brains.data()), size_t{33}, DDP_BF16, DDP_AVG, kWait);
        if (world() != 3) {
            EXPECT_THAT(halves, testing::Each(0x3e00));
            EXPECT_THAT(brains, testing::Each(0x3fc0));
        }
        std::vector<std::complex<float>> numbers(5, {1, -2});
        call(ddp_allreduce, group, static_cast<const void*>(nullptr),
             static_cast<void*>(numbers.data()), size_t{5}, DDP_C64, DDP_SUM, kWait);
        EXPECT_THAT(numbers,
                    testing::Each(std::complex<float>(1, -2) * static_cast<float>(world())));
        std::vector<std::complex<double>> products(5, {0, 1});
        call(ddp_allreduce, group, static_cast<const void*>(nullptr),
             static_cast<void*>(products.data()), size_t{5}, DDP_C128, DDP_PROD, kWait);
        std::complex<double> power{0, 1};
        for (int r = 1; r < world(); ++r) power *= std::complex<double>{0, 1};
        EXPECT_THAT(products, testing::Each(power));
    });
}

TEST_P(CollectivesTest, LargeHalfGradientsStayFinite) {
    // 2^15 on every rank: the sum overflows f16, the mean does not.
    on_ranks(ranks(), [&](int, ddp_group* group) {
        std::vector<uint16_t> halves(100, 0x7800);
        call(ddp_allreduce, group, static_cast<const void*>(nullptr),
             static_cast<void*>(halves.data()), size_t{100}, DDP_F16, DDP_AVG, kWait);
        for (auto h : halves) ASSERT_NEAR(h, 0x7800, 1);
    });
}

TEST_P(CollectivesTest, BroadcastFromEveryRoot) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (int root = 0; root < world(); ++root)
            for (size_t count : {size_t{0}, size_t{1}, size_t{5000}}) {
                std::vector<int64_t> data(count, rank == root ? root + 100 : -1);
                call(ddp_broadcast, group, static_cast<void*>(data.data()), count, DDP_I64, root,
                     kWait);
                EXPECT_THAT(data, testing::Each(root + 100));
            }
    });
}

TEST_P(CollectivesTest, AllgatherAndReduceScatter) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        const size_t count = 13, all = count * static_cast<size_t>(world());
        std::vector<float> mine(count, static_cast<float>(rank)), gathered(all, -1),
            in_place(all, -1);
        std::copy(mine.begin(), mine.end(), in_place.begin() + static_cast<long>(count) * rank);
        call(ddp_allgather, group, static_cast<const void*>(mine.data()),
             static_cast<void*>(gathered.data()), count, DDP_F32, kWait);
        call(ddp_allgather, group, static_cast<const void*>(nullptr),
             static_cast<void*>(in_place.data()), count, DDP_F32, kWait);
        for (size_t i = 0; i < all; ++i) ASSERT_EQ(gathered[i], static_cast<float>(i / count));
        EXPECT_EQ(in_place, gathered);

        std::vector<int32_t> send(all), recv(count);
        for (size_t i = 0; i < all; ++i) send[i] = static_cast<int32_t>(i) + rank;
        call(ddp_reduce_scatter, group, static_cast<const void*>(send.data()),
             static_cast<void*>(recv.data()), count, DDP_I32, DDP_SUM, kWait);
        for (size_t i = 0; i < count; ++i) {
            int32_t at = static_cast<int32_t>(count * static_cast<size_t>(rank) + i);
            ASSERT_EQ(recv[i], world() * at + world() * (world() - 1) / 2);
        }
    });
}

TEST_P(CollectivesTest, ManyInFlightFinishInOrder) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        std::vector<std::vector<float>> data(40, std::vector<float>(100, static_cast<float>(rank)));
        std::vector<ddp::Work> works;
        for (auto& d : data) {
            ddp_work* work = nullptr;
            call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                 static_cast<void*>(d.data()), d.size(), DDP_F32, DDP_SUM, &work);
            works.emplace_back(work);
        }
        for (auto& work : works) work.wait();
        for (auto& d : data)
            EXPECT_THAT(d, testing::Each(static_cast<float>(world() * (world() - 1) / 2)));
        call(ddp_barrier, group, kWait);
    });
}

TEST_P(CollectivesTest, ANegativeTimeoutDoesNotWait) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        std::vector<float> values(1000, static_cast<float>(rank));
        ddp_work* work = nullptr;
        ASSERT_EQ(ddp_allreduce(group, nullptr, values.data(), values.size(), DDP_F32, DDP_SUM,
                                &work, nullptr),
                  DDP_OK);
        ddp_status status = DDP_ERROR_TIMEOUT;
        while (status == DDP_ERROR_TIMEOUT) {
            status = ddp_work_wait(work, -1, nullptr);
            std::this_thread::yield();
        }
        EXPECT_EQ(status, DDP_OK);
        EXPECT_THAT(values, testing::Each(static_cast<float>(world() * (world() - 1) / 2)));
        EXPECT_EQ(ddp_work_wait(work, -1, nullptr), DDP_OK) << "it is done";
        ddp_work_free(work);
    });
}

TEST_P(CollectivesTest, SplitGroups) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        ddp_group* part = nullptr;
        // Even and odd ranks, in reverse order.
        call(ddp_group_split, group, rank % 2, -rank, &part);
        const int members = rank % 2 == 0 ? (world() + 1) / 2 : world() / 2;
        EXPECT_EQ(ddp_group_world_size(part), members);
        EXPECT_EQ(ddp_group_rank(part), members - 1 - rank / 2);
        std::vector<int32_t> sum{rank};
        call(ddp_allreduce, part, static_cast<const void*>(nullptr), static_cast<void*>(sum.data()),
             size_t{1}, DDP_I32, DDP_SUM, kWait);
        int expected_sum = 0;
        for (int r = rank % 2; r < world(); r += 2) expected_sum += r;
        EXPECT_EQ(sum[0], expected_sum);
        call(ddp_barrier, group, kWait);
        ddp_group_free(part);
        call(ddp_group_split, group, rank == 0 ? 3 : -1, 0, &part);
        EXPECT_EQ(part != nullptr, rank == 0);
        ddp_group_free(part);
        call(ddp_barrier, group, kWait);
    });
}

TEST_P(CollectivesTest, TheStoreIsTheProgramsToo) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        ddp_store* store = nullptr;
        call(ddp_group_store, group, &store);
        std::string mine = "hello from " + std::to_string(rank),
                    key = "greeting/" + std::to_string(rank);
        call(ddp_store_set, store, key.c_str(), static_cast<const void*>(mine.data()), mine.size());
        for (int r = 0; r < world(); ++r) {
            void* value = nullptr;
            size_t size = 0;
            auto other = "greeting/" + std::to_string(r);
            call(ddp_store_get, store, other.c_str(), int64_t{5000}, &value, &size);
            EXPECT_EQ(std::string(static_cast<char*>(value), size),
                      "hello from " + std::to_string(r));
            ddp_free(value);
        }
        call(ddp_barrier, group, kWait);
        ddp_store_free(store);
    });
}

TEST_P(CollectivesTest, DisagreementIsAnErrorOnEveryRank) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        std::vector<float> data(100, 1);
        ddp_error* error = nullptr;
        ddp_allreduce(group, nullptr, data.data(), rank == 1 ? 99 : 100, DDP_F32, DDP_SUM, nullptr,
                      &error);
        const Facts facts = take_facts(error);
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        EXPECT_GE(facts.rank, 0) << facts;
        EXPECT_EQ(ddp_group_status(group, nullptr), DDP_ERROR_MISMATCH);
    });
}

// Two threads are rank 0, each of its own group. Only one of them can start the store at the
// address of both groups.
TEST(Create, TwoGroupsMayMeetAtOneAddressAtOnce) {
    // An address of the loopback interface that other processes do not use.
    const auto pid = static_cast<unsigned>(getpid());
    const std::string host = "tcp://127." + std::to_string(64 + (pid >> 16) % 64) + "." +
                             std::to_string((pid >> 8) % 256) + "." + std::to_string(pid % 256);
    const RankOptions two(2, "threads");
    for (int port = 21'000; port < 21'020; ++port) {
        const std::string uri = host + ":" + std::to_string(port);
        std::barrier all(4);
        std::vector<std::thread> threads;
        for (const char* name : {"a", "b"})
            for (int rank = 0; rank < 2; ++rank)
                threads.emplace_back([&, name, rank] {
                    ddp_group_options options = group_options(two, rank, uri.c_str());
                    options.group_name = name;
                    ddp_group* group = nullptr;
                    ddp_error* error = nullptr;
                    all.arrive_and_wait();
                    EXPECT_EQ(ddp_group_create(&options, &group, &error), DDP_OK)
                        << take_message(error);
                    all.arrive_and_wait();
                    ddp_group_free(group);
                });
        for (auto& thread : threads) thread.join();
    }
}

// The same colors again, for other ranks: each split is a group of its own.
TEST(Split, ColorsMayBeUsedAgain) {
    for (const char* backend : {"threads", "tcp"})
        on_ranks({4, backend}, [](int rank, ddp_group* group) {
            struct Way {
                int color, members;
            };
            for (const auto& way :
                 {Way{rank / 2, 2}, Way{0, 4}, Way{rank % 2, 2}, Way{rank / 2, 2}}) {
                ddp_group* part = nullptr;
                ddp_error* error = nullptr;
                ASSERT_EQ(ddp_group_split(group, way.color, 0, &part, &error), DDP_OK)
                    << take_message(error);
                EXPECT_EQ(ddp_group_world_size(part), way.members);
                std::int32_t sum = 1;
                EXPECT_EQ(ddp_allreduce(part, nullptr, &sum, 1, DDP_I32, DDP_SUM, nullptr, &error),
                          DDP_OK)
                    << take_message(error);
                EXPECT_EQ(sum, way.members);
                ddp_group_free(part);
            }
        });
}

TEST(CollectivesOfCpp, EveryFunctionAndType) {
    on_ranks({3, "shm"}, [](int rank, ddp_group* handle) {
        ddp::Group group(handle);
        const auto mine = static_cast<float>(rank + 1);
        const std::complex<float> one{mine, -mine};
        std::vector<std::complex<float>> all(3);
        group.allgather(&one, all.data(), 1).wait();
        EXPECT_EQ(all, (std::vector<std::complex<float>>{{1, -1}, {2, -2}, {3, -3}}));
        std::complex<double> sum{1.0 + rank, 1};
        group.allreduce(&sum, 1).wait();
        EXPECT_EQ(sum, (std::complex<double>{6, 3}));
        const std::vector<std::int64_t> parts{10 + rank, 20 + rank, 30 + rank};
        std::int64_t part = 0;
        group.reduce_scatter(parts.data(), &part, 1, DDP_MAX).wait();
        EXPECT_EQ(part, 10 * (rank + 1) + 2);
        Half half{0x3c00};  // 1
        group.allreduce(&half, 1).wait();
        EXPECT_EQ(half.bits, 0x4200);  // 3
#if defined(__FLT16_MAX__) && (!defined(__aarch64__) || defined(__clang__) || __GNUC__ >= 13)
        __extension__ auto own = static_cast<_Float16>(rank);
        group.broadcast(&own, 1, 2).wait();
        EXPECT_EQ(static_cast<float>(own), 2);
#endif
        group.release();
    });
}

}  // namespace collectives_test
