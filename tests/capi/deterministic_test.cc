// A training run whose bits depend neither on how gradients are cut into buckets nor on whether the
// buckets were rebuilt, nor on how many groups take turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

namespace {

constexpr int kSteps = 4;
const std::vector<std::int64_t> kSizes = {1000, 3, 257, 40'000, 1, 5000, 64, 9001};

struct Case {
    int world;
    const char* backend;
    const char* backend_options;
};

struct Training {
    std::uint64_t cap;
    bool rebuild;
    bool view;
    unsigned groups = 1;
};

class DeterministicTest : public testing::TestWithParam<Case> {
protected:
    // Every rank's parameters after the run.
    std::vector<std::vector<float>> train(const Training& training) {
        std::vector<std::vector<float>> result(static_cast<std::size_t>(GetParam().world));
        RankOptions options(GetParam().world, GetParam().backend);
        options.backend_options = GetParam().backend_options;
        options.flags = DDP_GROUP_DETERMINISTIC;
        options.round_robin = training.groups;
        on_ranks(options, [&](int rank, ddp_group* group) {
            result[static_cast<std::size_t>(rank)] = on_rank(rank, group, training);
        });
        return result;
    }

private:
    static std::vector<float> on_rank(int rank, ddp_group* group, const Training& training) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = training.cap;
        options.first_bucket_cap_bytes = training.cap;
        if (!training.rebuild) options.flags |= DDP_CONTEXT_NO_REBUILD;
        Model model(group, kSizes, training.view, options);
        for (int p = 0; p < model.count(); ++p)
            for (std::size_t k = 0; k < model.size(p); ++k)
                model.data[static_cast<std::size_t>(p)][k] = 0.01f * static_cast<float>(k % 97);
        model.context.commit();
        const std::vector<int> order = {3, 7, 6, 0, 5, 4, 2, 1};  // not the order of the first plan
        for (int step = 0; step < kSteps; ++step) {
            model.context.step_begin();
            for (int p : order) {
                // Gradients of very different sizes, so that the order of a sum shows in its last
                // bits.
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.grad(p)[k] =
                        model.data[static_cast<std::size_t>(p)][k] *
                            std::ldexp(1.37f, 3 * rank - step) +
                        std::sin(static_cast<float>(k) * static_cast<float>(rank + 1));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p : order)
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.data[static_cast<std::size_t>(p)][k] -= 0.1f * model.grad(p)[k];
        }
        std::vector<float> all;
        for (const auto& values : model.data) all.insert(all.end(), values.begin(), values.end());
        return all;
    }
};

INSTANTIATE_TEST_SUITE_P(All, DeterministicTest,
                         testing::Values(Case{2, "threads", ""}, Case{3, "threads", ""},
                                         Case{4, "threads", ""}, Case{2, "tcp", ""},
                                         Case{3, "tcp", ""}, Case{4, "tcp", ""},
                                         Case{4, "gloo", "algorithm=bcube"}, Case{2, "shm", ""},
                                         Case{3, "shm", ""}, Case{4, "shm", ""}));

TEST_P(DeterministicTest, BitsDependNeitherOnBucketsNorOnTheRebuildNorOnTurns) {
    const auto reference = train({1 << 20, true, false});
    for (const auto& rank : reference)
        ASSERT_EQ(std::memcmp(rank.data(), reference[0].data(), rank.size() * sizeof(float)), 0)
            << "ranks differ";
    for (const Training& training :
         {Training{1 << 20, false, false}, Training{1 << 20, true, true}, Training{64, true, true},
          Training{4096, false, true}, Training{100'000, true, false},
          Training{4096, true, true, 2}, Training{10'000, true, false, 3}}) {
        const auto other = train(training);
        for (std::size_t r = 0; r < other.size(); ++r)
            ASSERT_EQ(
                std::memcmp(other[r].data(), reference[r].data(), other[r].size() * sizeof(float)),
                0)
                << "cap " << training.cap << (training.rebuild ? ", rebuilt" : ", not rebuilt")
                << (training.view ? ", views" : ", copies") << ", groups " << training.groups;
    }
}

}  // namespace
