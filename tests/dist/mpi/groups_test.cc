// Training, several groups and several threads over the backend mpi. Runs under mpirun, one process
// a rank.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dist/mpi/support.h"
#include "hooks/eight_bits_reference.h"
#include "support/model.h"

namespace {

const std::vector<std::int64_t> kSizes = {1000, 3, 257, 300'000, 1, 5000, 64};

float gradient(int rank, int step, int param, std::size_t k) {
    return static_cast<float>((k % 977 + 1) * static_cast<std::size_t>(rank + 1) % 251) / 251.0f +
           static_cast<float>(step + param) * 0.25f;
}

// The mean over ranks in double precision.
double mean(int step, int param, std::size_t k) {
    double sum = 0;
    for (int rank = 0; rank < world(); ++rank)
        sum += static_cast<double>(gradient(rank, step, param, k));
    return sum / world();
}

void train(ddp_group* group, bool view, const char* hook, double tolerance) {
    Model model(group, kSizes, view);
    if (hook)
        ddp::detail::call(ddp_use_hook, model.context.get(), hook,
                          static_cast<const char*>(nullptr));
    model.context.commit();
    for (int step = 0; step < 4; ++step) {
        model.context.step_begin();
        for (int p = model.count() - 1; p >= 0; --p) {
            float* values = model.grad(p);
            for (std::size_t k = 0; k < model.size(p); ++k)
                values[k] = gradient(my_rank(), step, p, k);
            model.context.grad_ready(p);
        }
        model.context.finalize();
        for (int p = 0; p < model.count(); ++p) {
            const float* values = model.grad(p);
            double worst = 0;
            for (std::size_t k = 0; k < model.size(p); ++k)
                worst =
                    std::max(worst, std::abs(static_cast<double>(values[k]) - mean(step, p, k)));
            ASSERT_LE(worst, tolerance) << "step " << step << ", p" << p;
        }
    }
}

TEST(MpiTraining, GradientsBecomeTheirMean) {
    for (const char* options : {"", "algorithm=mpi"})
        for (bool view : {true, false}) {
            auto group = join(options);
            train(group.get(), view, nullptr, 1e-6);
        }
}

TEST(MpiTraining, WithAHookInLowerPrecision) {
    for (const char* options : {"", "algorithm=mpi"}) {
        auto group = join(options);
        train(group.get(), true, "bf16", 2e-2);
    }
}

// Each element is summed in rank order whatever it is sent with.
TEST(MpiTraining, SumsInEightBitsHaveTheBitsOfThePlainSum) {
    namespace plain = eight_bits_test;
    ddp::Group group = join();
    for (const plain::Format& format : plain::kFormats) {
        Model model(group.get(), plain::kSizes, true);
        model.context.use_hook("quantize", std::string("type=") + format.name);
        model.context.commit();
        for (int s = 0; s < 2; ++s) {
            for (int p = model.count(); p-- > 0;) {
                const plain::Floats x = plain::gradient(my_rank(), p, s);
                std::copy(x.begin(), x.end(), model.grad(p));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p = 0; p < model.count(); ++p)
                EXPECT_EQ(plain::Floats(model.grad(p), model.grad(p) + model.size(p)),
                          plain::reference(format, p, s, world(), 256))
                    << format.name << " step " << s << " parameter " << p;
        }
    }
}

TEST(MpiDeterministic, BitsDoNotDependOnTheCut) {
    auto group = join("", DDP_GROUP_DETERMINISTIC);
    const std::size_t count = 1'000'003;
    auto values_of = [&](int rank) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::vector<float> values(count);
        for (auto& value : values)
            value = std::ldexp(static_cast<float>(random()) - 2147483648.0f,
                               static_cast<int>(random() % 40) - 20);
        return values;
    };
    std::vector<float> in_rank_order(count, 0);
    for (int rank = 0; rank < world(); ++rank) {
        const auto values = values_of(rank);
        for (std::size_t i = 0; i < count; ++i) in_rank_order[i] += values[i];
    }
    for (std::size_t piece :
         {count, std::size_t{300'000}, std::size_t{70'001}, std::size_t{9'000}}) {
        auto mine = values_of(my_rank());
        for (std::size_t at = 0; at < count; at += piece)
            group.allreduce(mine.data() + at, std::min(piece, count - at)).wait();
        ASSERT_EQ(std::memcmp(mine.data(), in_rank_order.data(), count * sizeof(float)), 0)
            << "pieces of " << piece;
    }
}

TEST(MpiDeterministic, RefusesWhatIsNot) {
    try {
        join("algorithm=mpi", DDP_GROUP_DETERMINISTIC);
        ADD_FAILURE() << "accepted";
    } catch (const ddp::Error& error) {
        EXPECT_EQ(error.status(), DDP_ERROR_INVALID_ARGUMENT) << error.what();
    }
}

TEST(MpiOptions, UnknownOnesAreRefusedBySentence) {
    const struct {
        const char* options;
        const char* words;
    } cases[] = {{"algorithms=mpi", "algorithms"},
                 {"algorithm=ring", "auto, direct, mpi"},
                 {"finalize_timeout_ms=soon", "finalize_timeout_ms"},
                 {"algorithm", "key=value"}};
    for (const auto& c : cases) try {
            join(c.options);
            ADD_FAILURE() << c.options << " was accepted";
        } catch (const ddp::Error& error) {
            EXPECT_EQ(error.status(), DDP_ERROR_INVALID_ARGUMENT) << error.what();
            EXPECT_NE(std::string(error.what()).find(c.words), std::string::npos) << error.what();
        }
}

void expect_sum(ddp::Group& group, int mine, int expected) {
    std::int32_t sum = mine;
    group.allreduce(&sum, 1).wait();
    EXPECT_EQ(sum, expected);
}

TEST(MpiSplit, SubsetsReversedAndNested) {
    auto all = join();
    auto part = all.split(my_rank() % 2, -my_rank());
    const int members = my_rank() % 2 == 0 ? (world() + 1) / 2 : world() / 2;
    ASSERT_EQ(part.world_size(), members);
    ASSERT_EQ(part.rank(), members - 1 - my_rank() / 2);
    int expected = 0;
    for (int r = my_rank() % 2; r < world(); r += 2) expected += r;
    expect_sum(part, my_rank(), expected);
    // Ranks count as in the part: the part's rank 0 is the highest process.
    std::int32_t from_first = my_rank();
    part.broadcast(&from_first, 1).wait();
    EXPECT_EQ(from_first, my_rank() % 2 + 2 * (members - 1));
    auto reversed = all.split(0, -my_rank());
    EXPECT_EQ(reversed.rank(), world() - 1 - my_rank());
    std::vector<std::int32_t> order(static_cast<std::size_t>(world()));
    std::int32_t mine = my_rank();
    ddp::detail::call(ddp_allgather, reversed.get(), static_cast<const void*>(&mine),
                      static_cast<void*>(order.data()), std::size_t{1}, DDP_I32,
                      static_cast<ddp_work**>(nullptr));
    for (int r = 0; r < world(); ++r)
        EXPECT_EQ(order[static_cast<std::size_t>(r)], world() - 1 - r);
    auto inner = reversed.split(my_rank() < 2 ? 0 : -1);
    EXPECT_EQ(static_cast<bool>(inner), my_rank() < 2);
    if (inner) expect_sum(inner, 1, 2);
    all.barrier();
}

TEST(MpiSplit, ManyGroupsOneAfterAnother) {
    auto all = join();
    for (int i = 0; i < 10; ++i) {
        auto group = all.split(0, i % 2 ? my_rank() : -my_rank());
        expect_sum(group, 1, world());
    }
}

TEST(MpiSplit, WhereRanksAreStaysInTheStoreOnlyUntilTheyHaveConnected) {
    auto all = join();
    all.barrier();  // every rank has made the group
    ddp_store* store = nullptr;
    ddp::detail::call(ddp_group_store, all.get(), &store);
    void* keys = nullptr;
    std::size_t size = 0;
    ddp::detail::call(ddp_store_list_keys, store, "", &keys, &size);
    const std::string text(static_cast<const char*>(keys), size);
    EXPECT_GT(size, 0u);
    EXPECT_EQ(text.find("place/"), std::string::npos) << text;
    ddp_free(keys);
    ddp_store_free(store);
    all.barrier();
}

// The ranks wait for two groups in different orders: neither may keep the other from running.
TEST(MpiThreads, GroupsDoNotWaitForEachOther) {
    auto first = join("", 0, "first"), second = join("", 0, "second");
    for (int i = 0; i < 50; ++i) {
        std::vector<float> a(20'000, 1), b(20'000, 2);
        auto& early = my_rank() % 2 ? first : second;
        auto& late = my_rank() % 2 ? second : first;
        auto& early_data = my_rank() % 2 ? a : b;
        auto& late_data = my_rank() % 2 ? b : a;
        auto one = early.allreduce(early_data.data(), early_data.size());
        auto two = late.allreduce(late_data.data(), late_data.size());
        one.wait();
        two.wait();
        ASSERT_EQ(a[0], static_cast<float>(world()));
        ASSERT_EQ(b[19'999], static_cast<float>(2 * world()));
    }
}

TEST(MpiThreads, GroupsAreMadeAndUsedByThreadsAtTheSameTime) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([t] {
            try {
                auto group = join(t % 2 ? "algorithm=mpi" : "", 0, "thread " + std::to_string(t));
                for (int i = 0; i < 20; ++i) {
                    std::vector<double> data(10'000, 1 + t);
                    group.allreduce(data.data(), data.size()).wait();
                    ASSERT_EQ(data[5000], (1 + t) * world());
                }
            } catch (const std::exception& error) {
                ADD_FAILURE() << "thread " << t << ": " << error.what();
            }
        });
    for (auto& thread : threads) thread.join();
}

}  // namespace
