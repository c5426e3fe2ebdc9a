// Every collective of the backend mpi against a plain reference: every dtype and op, in place and
// not, blocks and parts of blocks, both algorithms. Runs under mpirun, one process a rank.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dist/mpi/elements.h"
#include "dist/mpi/support.h"
#include "support/error_of.h"
#include "support/model.h"

namespace {

using ddp::detail::call;

constexpr ddp_work** kWait = nullptr;

// Rank 0 has 1, 2, 3, 1, 2, 3, ..., rank 1 starts at 2, and so on. Four ranks' products fit into u8
// and f16.
double input(int rank, std::size_t i) {
    return static_cast<double>(1 + (static_cast<std::size_t>(rank) + i) % 3);
}

double fold(ddp_reduce_op op, double a, double b) {
    switch (op) {
        case DDP_PROD:
            return a * b;
        case DDP_MIN:
            return std::min(a, b);
        case DDP_MAX:
            return std::max(a, b);
        default:
            return a + b;
    }
}

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

// The result of every rank for element i; the same for i + 3. Quotients are exact where the world
// is a power of two, and for integers.
template <class T>
T expected(ddp_reduce_op op, std::size_t i) {
    if constexpr (IsComplex<T>::value) {
        if (op == DDP_PROD) {
            T value = element<T>(input(0, i));
            for (int r = 1; r < world(); ++r) value *= element<T>(input(r, i));
            return value;
        }
    }
    double value = input(0, i);
    for (int r = 1; r < world(); ++r) value = fold(op, value, input(r, i));
    if (op != DDP_AVG) return element<T>(value);
    return element<T>(std::is_integral_v<T> ? std::trunc(value / world()) : value / world());
}

// Types to run a test for.
template <class T>
bool has(ddp_reduce_op op) {
    if (IsComplex<T>::value && (op == DDP_MIN || op == DDP_MAX)) return false;
    return op != DDP_AVG || std::is_integral_v<T> || (world() & (world() - 1)) == 0;
}

class MpiCollectivesTest : public testing::TestWithParam<const char*> {
protected:
    void SetUp() override { group_ = join(std::string("algorithm=") + GetParam()); }

    template <class T>
    std::vector<T> inputs(int rank, std::size_t count) {
        const T period[] = {element<T>(input(rank, 0)), element<T>(input(rank, 1)),
                            element<T>(input(rank, 2))};
        std::vector<T> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = period[i % 3];
        return values;
    }

    // Whether values are those that every rank gets for the elements from `first` on.
    template <class T>
    void expect_reduced(const std::vector<T>& values, ddp_reduce_op op, std::size_t first) {
        const T period[] = {expected<T>(op, 0), expected<T>(op, 1), expected<T>(op, 2)};
        for (std::size_t i = 0; i < values.size(); ++i)
            if (!(values[i] == period[(first + i) % 3])) FAIL() << "element " << i << " differs";
    }

    template <class T>
    void check_allreduce(std::size_t count, ddp_reduce_op op) {
        SCOPED_TRACE(std::string(Dtype<T>::name) + " op " + std::to_string(op) + " count " +
                     std::to_string(count));
        auto in = inputs<T>(my_rank(), count);
        const auto kept = in;
        std::vector<T> out(count, element<T>(9));
        call(ddp_allreduce, group_.get(), static_cast<const void*>(in.data()),
             static_cast<void*>(out.data()), count, Dtype<T>::value, op, kWait);
        ASSERT_TRUE(in == kept) << "the input stays";
        call(ddp_allreduce, group_.get(), static_cast<const void*>(nullptr),
             static_cast<void*>(in.data()), count, Dtype<T>::value, op, kWait);
        expect_reduced(out, op, 0);
        ASSERT_TRUE(in == out) << "in place";
    }

    template <class T>
    void check_reduce_scatter(std::size_t count, ddp_reduce_op op) {
        SCOPED_TRACE(std::string(Dtype<T>::name) + " op " + std::to_string(op) + " count " +
                     std::to_string(count));
        const std::size_t first = count * static_cast<std::size_t>(my_rank());
        const auto in = inputs<T>(my_rank(), count * static_cast<std::size_t>(world()));
        std::vector<T> out(count, element<T>(9));
        call(ddp_reduce_scatter, group_.get(), static_cast<const void*>(in.data()),
             static_cast<void*>(out.data()), count, Dtype<T>::value, op, kWait);
        expect_reduced(out, op, first);
    }

    template <class T>
    void check_movement(std::size_t count) {
        SCOPED_TRACE(std::string(Dtype<T>::name) + " count " + std::to_string(count));
        const std::size_t ranks = static_cast<std::size_t>(world()),
                          self = static_cast<std::size_t>(my_rank());
        const auto mine = inputs<T>(my_rank(), count);
        std::vector<T> all(count * ranks, element<T>(9)), in_place = all;
        std::copy(mine.begin(), mine.end(),
                  in_place.begin() + static_cast<std::ptrdiff_t>(count * self));
        call(ddp_allgather, group_.get(), static_cast<const void*>(mine.data()),
             static_cast<void*>(all.data()), count, Dtype<T>::value, kWait);
        call(ddp_allgather, group_.get(), static_cast<const void*>(nullptr),
             static_cast<void*>(in_place.data()), count, Dtype<T>::value, kWait);
        for (std::size_t r = 0; r < ranks; ++r) {
            const auto theirs = inputs<T>(static_cast<int>(r), count);
            ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(),
                                   all.begin() + static_cast<std::ptrdiff_t>(r * count)))
                << "rank " << r;
        }
        ASSERT_TRUE(all == in_place);
        for (int root = 0; root < world(); ++root) {
            auto data =
                my_rank() == root ? inputs<T>(root, count) : std::vector<T>(count, element<T>(9));
            call(ddp_broadcast, group_.get(), static_cast<void*>(data.data()), count,
                 Dtype<T>::value, root, kWait);
            ASSERT_TRUE(data == inputs<T>(root, count)) << "root " << root;
        }
    }

    // Elements from each rank to each: matrix[from * world + to].
    template <class T>
    void check_exchange(const std::vector<std::uint64_t>& matrix) {
        const auto ranks = static_cast<std::size_t>(world()),
                   self = static_cast<std::size_t>(my_rank());
        std::vector<std::uint64_t> sent, expected;
        std::vector<T> in, want;
        for (std::size_t other = 0; other < ranks; ++other) {
            sent.push_back(matrix[self * ranks + other]);
            expected.push_back(matrix[other * ranks + self]);
            const auto part = [&](std::size_t from, std::size_t to, std::uint64_t count) {
                return inputs<T>(static_cast<int>((from + to) % ranks),
                                 static_cast<std::size_t>(count));
            };
            const auto mine = part(self, other, sent.back()),
                       theirs = part(other, self, expected.back());
            in.insert(in.end(), mine.begin(), mine.end());
            want.insert(want.end(), theirs.begin(), theirs.end());
        }
        want.push_back(element<T>(9));  // behind the message
        std::vector<T> out(want.size(), element<T>(9));
        group_.all_to_all(in.data(), sent, out.data(), expected).wait();
        EXPECT_TRUE(out == want);
        if (std::count(matrix.begin(), matrix.end(), matrix[0]) !=
            static_cast<std::ptrdiff_t>(matrix.size()))
            return;
        std::fill(out.begin(), out.end(), element<T>(9));
        group_.all_to_all(in.data(), out.data(), static_cast<std::size_t>(matrix[0])).wait();
        EXPECT_TRUE(out == want);
    }

    template <class T>
    void check_type() {
        for (ddp_reduce_op op : {DDP_SUM, DDP_AVG, DDP_PROD, DDP_MIN, DDP_MAX}) {
            if (!has<T>(op)) continue;
            for (std::size_t count : {0, 1, 7, 1000, 5000, 40'000}) check_allreduce<T>(count, op);
            for (std::size_t count : {0, 1, 1000}) check_reduce_scatter<T>(count, op);
        }
        for (std::size_t count : {0, 1, 1000}) check_movement<T>(count);
    }

    ddp::Group group_;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, MpiCollectivesTest, testing::Values("direct", "mpi"),
                         [](const auto& test) { return test.param; });

TEST_P(MpiCollectivesTest, EveryTypeAndOp) {
    EXPECT_STREQ(ddp_group_backend(group_.get()), "mpi");
    check_type<Half>();
    check_type<Brain>();
    check_type<float>();
    check_type<double>();
    check_type<std::int32_t>();
    check_type<std::int64_t>();
    check_type<std::uint8_t>();
    check_type<std::complex<float>>();
    check_type<std::complex<double>>();
}

TEST_P(MpiCollectivesTest, Exchanges) {
    const auto pairs = static_cast<std::size_t>(world() * world());
    for (const std::uint64_t count : {0, 1, 1000, 700'003}) {
        check_exchange<float>(std::vector<std::uint64_t>(pairs, count));
        if (count < 10'000) check_exchange<std::int64_t>(std::vector<std::uint64_t>(pairs, count));
    }
    for (const std::uint64_t most : {3, 500, 1'300'000}) {
        std::vector<std::uint64_t> matrix;
        for (std::size_t i = 0; i < pairs; ++i)
            matrix.push_back(i % 4 == 1 ? 0 : (i * 7919 + most) % (most + 1));
        check_exchange<float>(matrix);
        check_exchange<std::uint8_t>(matrix);
    }
    // All of it to one rank.
    std::vector<std::uint64_t> matrix(pairs);
    for (std::size_t from = 0; from < pairs; from += static_cast<std::size_t>(world()))
        matrix[from] = 400'001;
    check_exchange<double>(matrix);
}

// Data is moved in blocks of 1 and 4 MiB: several of them, and a last one that is not whole.
TEST_P(MpiCollectivesTest, ManyBlocks) {
    const std::size_t count = 2'200'003;
    check_allreduce<float>(count, DDP_SUM);
    check_allreduce<Half>(count / 2, DDP_SUM);
    check_allreduce<std::uint8_t>(count, DDP_MAX);
    check_reduce_scatter<float>(count / 7, DDP_SUM);
    check_movement<double>(count / 4);
}

// Ranks own parts of a bucket of different sizes: whole parameters, and one that is longer than
// several blocks.
TEST_P(MpiCollectivesTest, SharesOfABucket) {
    const std::vector<std::int64_t> sizes{7, 2'000'001, 300'000, 1};
    auto options = ddp::Context::defaults();
    options.flags = DDP_CONTEXT_SHARD;
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 64 << 20;
    for (const ddp_owner owner : {DDP_OWNER_WHOLE, DDP_OWNER_ELEMENTS}) {
        Model model(group_.get(), sizes, true, options);
        for (int p = 0; p < model.count(); ++p) model.context.set_owner(p, owner);
        model.context.commit();
        for (int p = model.count(); p-- > 0;) {
            for (std::size_t k = 0; k < model.size(p); ++k)
                model.grad(p)[k] =
                    static_cast<float>((k + 1) % 1000 * 3) * static_cast<float>(my_rank());
            model.context.grad_ready(p);
        }
        model.context.finalize();
        const float mean = static_cast<float>(world() - 1) / 2;
        for (const ddp_piece& piece : model.context.pieces())
            for (std::int64_t i = 0; i < piece.count; ++i) {
                const auto at = static_cast<float>((piece.first + i + 1) % 1000 * 3);
                ASSERT_FLOAT_EQ(static_cast<float*>(piece.gradient)[i], at * mean);
                static_cast<float*>(piece.value)[i] = at + static_cast<float>(piece.param);
            }
        model.context.publish();
        for (int p = 0; p < model.count(); ++p) {
            model.context.wait_value(p);
            for (std::size_t k = 0; k < model.size(p); ++k)
                ASSERT_EQ(model.data[static_cast<std::size_t>(p)][k],
                          static_cast<float>((k + 1) % 1000 * 3) + static_cast<float>(p));
        }
    }
}

// 2^15 on every rank: a sum in f16 is infinite, the mean is not.
TEST_P(MpiCollectivesTest, LargeHalfGradientsStayFinite) {
    std::vector<std::uint16_t> halves(100, 0x7800);
    call(ddp_allreduce, group_.get(), static_cast<const void*>(nullptr),
         static_cast<void*>(halves.data()), halves.size(), DDP_F16, DDP_AVG, kWait);
    for (auto half : halves) ASSERT_EQ(half, 0x7800);
}

// f16 and bf16 are added up in f32: 256 + 1 + ... would stay 256 in bf16.
TEST_P(MpiCollectivesTest, LowPrecisionIsRoundedOnce) {
    const double mine = my_rank() == 0 ? 256 : 1;
    std::vector<Brain> values(100, element<Brain>(mine));
    call(ddp_allreduce, group_.get(), static_cast<const void*>(nullptr),
         static_cast<void*>(values.data()), values.size(), DDP_BF16, DDP_SUM, kWait);
    // Between 256 and 512 bf16 holds even numbers: 257 is rounded to 256, 258 stays, 259 is rounded
    // to 260.
    const double sums[] = {256, 256, 258, 260};
    for (const auto& value : values) ASSERT_TRUE(value == element<Brain>(sums[world() - 1]));
}

TEST_P(MpiCollectivesTest, ANaNOnAnyRankGivesNaNOnEveryRank) {
    for (ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX})
        for (int owner = 0; owner < world(); ++owner) {
            std::vector<float> values(
                10, my_rank() == owner ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
            call(ddp_allreduce, group_.get(), static_cast<const void*>(nullptr),
                 static_cast<void*>(values.data()), values.size(), DDP_F32, op, kWait);
            for (float value : values)
                ASSERT_TRUE(std::isnan(value)) << "op " << op << ", owner " << owner;
        }
}

TEST_P(MpiCollectivesTest, ManyInFlightFinishInOrder) {
    std::vector<std::vector<float>> data(40,
                                         std::vector<float>(100, static_cast<float>(my_rank())));
    std::vector<ddp::Work> works;
    for (auto& d : data) works.push_back(group_.allreduce(d.data(), d.size()));
    for (auto& work : works) work.wait();
    for (const auto& d : data)
        for (float value : d) ASSERT_EQ(value, static_cast<float>(world() * (world() - 1) / 2));
    group_.barrier();
}

TEST_P(MpiCollectivesTest, DisagreementIsAnErrorOnEveryRank) {
    std::vector<float> data(100, 1);
    ddp_error* error = nullptr;
    const auto status = ddp_allreduce(group_.get(), nullptr, data.data(), my_rank() == 1 ? 99 : 100,
                                      DDP_F32, DDP_SUM, nullptr, &error);
    EXPECT_EQ(status, DDP_ERROR_MISMATCH);
    const Facts facts = take_facts(error);
    // Rank 1, or the rank that rank 1 heard of first.
    EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, facts.rank}));
    EXPECT_GE(facts.rank, 0) << facts;
    // Each rank knows the call of the other.
    for (const char* call : {"allreduce of 100 f32", "allreduce of 99 f32"})
        EXPECT_NE(facts.message.find(call), std::string::npos) << facts;
}

// A group that broke does not spoil the next one of the same processes.
TEST_P(MpiCollectivesTest, AGroupAfterABrokenOne) {
    float one = 1;
    group_.allreduce(&one, 1).wait();
    EXPECT_EQ(one, static_cast<float>(world()));
}

}  // namespace
