// all_to_all.h on backends that know the collective and on those that do not, against a plain
// reference; and ranks that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/ranks.h"

namespace all_to_all_test {

using testing::AllOf;
using testing::HasSubstr;
using Counts = std::vector<std::uint64_t>;
using Matrix = std::vector<Counts>;  // what each rank sends to each

struct Case {
    int world;
    const char* backend;
    const char* options = "";
    unsigned groups = 1;
};

class AllToAll : public testing::TestWithParam<Case> {
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
    std::string name = std::string(info.param.backend) + "_" + info.param.options + "_" +
                       std::to_string(info.param.world) + (info.param.groups > 1 ? "_in_turn" : "");
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, AllToAll,
    testing::Values(Case{1, "shm"}, Case{2, "shm"}, Case{3, "shm"}, Case{5, "shm"}, Case{9, "shm"},
                    Case{1, "tcp"}, Case{2, "tcp"}, Case{4, "tcp"}, Case{9, "tcp"},
                    Case{3, "tcp", "algorithm=ring"}, Case{1, "hierarchical"}, Case{3, "gloo"},
                    Case{4, "gloo", "algorithm=bcube"}, Case{6, "gloo"}, Case{3, "threads"},
                    Case{4, "threads-plain"}, Case{2, "threads-single"}, Case{3, "threads-caller"},
                    Case{3, "shm", "", 2}, Case{3, "tcp", "", 2}),
    name_of);

// The element number i of what `from` sends to `to`.
template <class T>
T element(int from, int to, std::size_t i) {
    return static_cast<T>((from * 31 + to * 7 + static_cast<int>(i % 50)) % 251);
}

template <class T>
void check(ddp::Group& group, const Matrix& matrix) {
    const int me = group.rank(), world = group.world_size();
    Counts send_counts = matrix[static_cast<std::size_t>(me)], recv_counts;
    std::vector<T> send, want;
    for (int other = 0; other < world; ++other) {
        const auto o = static_cast<std::size_t>(other), m = static_cast<std::size_t>(me);
        for (std::size_t i = 0; i < matrix[m][o]; ++i) send.push_back(element<T>(me, other, i));
        for (std::size_t i = 0; i < matrix[o][m]; ++i) want.push_back(element<T>(other, me, i));
        recv_counts.push_back(matrix[o][m]);
    }
    const std::vector<T> kept = send;
    std::vector<T> recv(want.size() + 1, T(99));
    want.push_back(T(99));  // behind the message
    group.all_to_all(send.data(), send_counts, recv.data(), recv_counts).wait();
    EXPECT_EQ(recv, want);
    EXPECT_EQ(send, kept);
    const std::uint64_t count = matrix[0][0];
    if (std::all_of(matrix.begin(), matrix.end(), [&](const Counts& row) {
            return std::count(row.begin(), row.end(), count) == world;
        })) {
        std::fill(recv.begin(), recv.end(), T(99));
        group.all_to_all(send.data(), recv.data(), static_cast<std::size_t>(count)).wait();
        EXPECT_EQ(recv, want);
    }
}

Matrix equal(int world, std::uint64_t count) {
    return Matrix(static_cast<std::size_t>(world), Counts(static_cast<std::size_t>(world), count));
}

TEST_P(AllToAll, OfEqualParts) {
    on_ranks(ranks(), [&](int, ddp_group* handle) {
        ddp::Group group(handle);
        for (const std::uint64_t count : {0, 1, 3, 40, 1001, 70'001}) {
            SCOPED_TRACE(count);
            check<float>(group, equal(world(), count));
            if (count > 1001) continue;
            check<std::uint8_t>(group, equal(world(), count));
            check<std::int64_t>(group, equal(world(), count));
            check<std::complex<double>>(group, equal(world(), count));
        }
        group.release();
    });
}

// Parts of any size, most of them nothing, one rank that sends to nobody, one that gets all.
TEST_P(AllToAll, OfUnevenParts) {
    std::mt19937 random(7);
    std::vector<Matrix> matrices;
    for (const unsigned most : {3u, 50u, 3000u, 90'000u})
        for (int shape = 0; shape < 4; ++shape) {
            Matrix matrix = equal(world(), 0);
            const std::size_t one = random() % matrix.size();
            for (std::size_t from = 0; from < matrix.size(); ++from)
                for (std::size_t to = 0; to < matrix.size(); ++to) {
                    const bool nothing = (shape == 1 && random() % 4 != 0) ||
                                         (shape == 2 && from == one) || (shape == 3 && to != one);
                    matrix[from][to] = nothing ? 0 : random() % most;
                }
            matrices.push_back(matrix);
        }
    matrices.push_back(equal(world(), 0));
    on_ranks(ranks(), [&](int, ddp_group* handle) {
        ddp::Group group(handle);
        for (const Matrix& matrix : matrices) {
            check<float>(group, matrix);
            check<std::uint8_t>(group, matrix);
        }
        group.release();
    });
}

TEST_P(AllToAll, ManyInFlightAmongOtherCollectives) {
    on_ranks(ranks(), [&](int rank, ddp_group* handle) {
        ddp::Group group(handle);
        const auto n = static_cast<std::size_t>(world());
        std::vector<std::vector<std::int64_t>> send(30), recv(30), sums(30);
        std::vector<ddp::Work> works;
        for (std::size_t k = 0; k < send.size(); ++k) {
            send[k].assign(n * k, rank);
            recv[k].assign(n * k, -1);
            sums[k].assign(5, rank);
            works.push_back(group.all_to_all(send[k].data(), recv[k].data(), k));
            works.push_back(group.allreduce(sums[k].data(), sums[k].size()));
        }
        for (auto& work : works) work.wait();
        for (std::size_t k = 0; k < send.size(); ++k) {
            for (std::size_t i = 0; i < n * k; ++i)
                ASSERT_EQ(recv[k][i], static_cast<std::int64_t>(i / k));
            EXPECT_THAT(sums[k], testing::Each(world() * (world() - 1) / 2));
        }
        group.release();
    });
}

// Calls that differ between ranks: the same error on all of them.
class Differ {
public:
    explicit Differ(RankOptions options) : options_(std::move(options)) {}

    // call(rank, group, error): of the C interface.
    std::string message(
        const std::function<ddp_status(int rank, ddp_group* group, ddp_error** error)>& call) {
        std::set<std::string> said;
        std::mutex mutex;
        on_ranks(options_, [&](int rank, ddp_group* group) {
            ddp_error* error = nullptr;
            EXPECT_EQ(call(rank, group, &error), DDP_ERROR_MISMATCH) << "rank " << rank;
            EXPECT_EQ(ddp_group_status(group, nullptr), DDP_ERROR_MISMATCH);
            const std::lock_guard lock(mutex);
            said.insert(take_message(error));
        });
        EXPECT_EQ(said.size(), 1u) << "ranks say different things";
        return said.empty() ? "" : *said.begin();
    }

private:
    const RankOptions options_;
};

TEST_P(AllToAll, CountsThatDoNotFitAreAnErrorOnEveryRank) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    for (const unsigned flags : {0u, unsigned{DDP_GROUP_NO_MATCH_CHECK}}) {
        RankOptions options = ranks();
        options.flags = flags;
        const std::string said =
            Differ(options).message([&](int rank, ddp_group* group, ddp_error** error) {
                const auto n = static_cast<std::size_t>(world());
                Counts sent(n, 4), expected(n, 4);
                if (rank == 1) sent[0] = 5;
                std::vector<float> send(4 * n + 1, 1), recv(4 * n + 1, -7);
                const ddp_status status =
                    ddp_all_to_allv(group, send.data(), recv.data(), sent.data(), expected.data(),
                                    n, DDP_F32, nullptr, error);
                EXPECT_THAT(recv, testing::Each(-7)) << "no data has moved";
                return status;
            });
        EXPECT_THAT(
            said, AllOf(HasSubstr("rank 1 sends 5 f32 to rank 0"), HasSubstr("rank 0 expects 4")));
    }
}

TEST_P(AllToAll, AnotherCountIsAnErrorOnEveryRank) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    const std::string said =
        Differ(ranks()).message([&](int rank, ddp_group* group, ddp_error** error) {
            std::vector<float> send(static_cast<std::size_t>(100 * world()), 1), recv(send.size());
            return ddp_all_to_all(group, send.data(), recv.data(), rank == 1 ? 99 : 100, DDP_F32,
                                  nullptr, error);
        });
    EXPECT_THAT(said, AllOf(HasSubstr("all_to_all of 100 f32"), HasSubstr("all_to_all of 99 f32")));
}

TEST_P(AllToAll, AnotherCollectiveIsAnErrorOnEveryRank) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    std::string said = Differ(ranks()).message([&](int rank, ddp_group* group, ddp_error** error) {
        std::vector<float> send(static_cast<std::size_t>(100 * world()), 1), recv(send.size());
        if (rank == 1)
            return ddp_allgather(group, send.data(), recv.data(), 100, DDP_F32, nullptr, error);
        return ddp_all_to_all(group, send.data(), recv.data(), 100, DDP_F32, nullptr, error);
    });
    EXPECT_THAT(said, AllOf(HasSubstr("all_to_all of 100 f32"), HasSubstr("allgather of 100 f32"),
                            HasSubstr("different order")));
    said = Differ(ranks()).message([&](int rank, ddp_group* group, ddp_error** error) {
        const auto n = static_cast<std::size_t>(world());
        const Counts counts(n, 4);
        std::vector<float> send(4 * n, 1), recv(send.size());
        if (rank == 1)
            return ddp_all_to_all(group, send.data(), recv.data(), 4, DDP_F32, nullptr, error);
        return ddp_all_to_allv(group, send.data(), recv.data(), counts.data(), counts.data(), n,
                               DDP_F32, nullptr, error);
    });
    EXPECT_THAT(
        said, AllOf(HasSubstr("all_to_all of uneven parts of f32"), HasSubstr("ddp_all_to_allv")));
}

TEST(AllToAllAlone, CountsThatDoNotFit) {
    on_ranks({1, "shm"}, [](int, ddp_group* group) {
        const std::uint64_t sent = 3, expected = 2;
        float send[3] = {1, 2, 3}, recv[3] = {};
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_all_to_allv(group, send, recv, &sent, &expected, 1, DDP_F32, nullptr, &error),
                  DDP_ERROR_MISMATCH);
        EXPECT_THAT(take_message(error), HasSubstr("rank 0 sends 3 f32 to rank 0"));
    });
}

// A mistake that only one rank can see is refused at once, and nothing else happens.
TEST(AllToAllAlone, RefusesMemoryThatOverlaps) {
    on_ranks({1, "shm"}, [](int, ddp_group* group) {
        std::vector<float> data(20, 1);
        const std::uint64_t four = 4, none = 0;
        ddp_error* error = nullptr;
        const auto refused = [&](ddp_status status, const char* why) {
            EXPECT_EQ(status, DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(take_message(error), HasSubstr(why));
        };
        const auto equal = [&](const void* send, void* recv) {
            error = nullptr;
            return ddp_all_to_all(group, send, recv, 4, DDP_F32, nullptr, &error);
        };
        refused(equal(data.data(), data.data()), "does not work in place");
        refused(equal(data.data(), data.data() + 3), "does not work in place");
        refused(equal(data.data() + 3, data.data()), "does not work in place");
        refused(equal(nullptr, data.data()), "send is NULL");
        refused(equal(data.data(), nullptr), "recv is NULL");
        EXPECT_EQ(equal(data.data(), data.data() + 4), DDP_OK);
        const auto uneven = [&](const std::uint64_t* sent, const std::uint64_t* expected,
                                std::size_t n) {
            error = nullptr;
            return ddp_all_to_allv(group, data.data(), data.data() + 10, sent, expected, n, DDP_F32,
                                   nullptr, &error);
        };
        refused(uneven(&four, &four, 2), "n is 2, but the group has 1");
        refused(uneven(nullptr, &four, 1), "send_counts is NULL");
        refused(uneven(&four, nullptr, 1), "recv_counts is NULL");
        const std::uint64_t huge = ~std::uint64_t{0};
        refused(uneven(&huge, &huge, 1), "send_counts[0] is 18446744073709551615");
        EXPECT_EQ(uneven(&four, &four, 1), DDP_OK);
        EXPECT_EQ(
            ddp_all_to_allv(group, nullptr, nullptr, &none, &none, 1, DDP_F32, nullptr, nullptr),
            DDP_OK);
        EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK);
    });
}

}  // namespace all_to_all_test
