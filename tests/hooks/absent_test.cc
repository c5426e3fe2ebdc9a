// Parameters that no rank uses for a while, with hooks that keep what they leave out.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/model.h"
#include "support/ranks.h"

namespace {

using Bytes = std::vector<unsigned char>;

struct Kept {
    const char* hook;
    const char* options;
};
void PrintTo(const Kept& kept, std::ostream* out) {
    *out << kept.hook;
}

class AbsentGradients : public testing::TestWithParam<Kept> {};
INSTANTIATE_TEST_SUITE_P(Hooks, AbsentGradients,
                         testing::Values(Kept{"onebit", "min_elements=0"}, Kept{"topk", "min_elements=0"},
                                         Kept{"powersgd", "start=0,min_rate=0.1"},
                                         Kept{"batched_powersgd", "start=0,min_rate=0.1"}));

// Of hooks that compress each parameter by itself.
class AbsentLayers : public AbsentGradients {};
INSTANTIATE_TEST_SUITE_P(Hooks, AbsentLayers,
                         testing::Values(Kept{"onebit", "min_elements=0"}, Kept{"topk", "min_elements=0"},
                                         Kept{"powersgd", "start=0,min_rate=0.1"}));

// Two matrices, of which the second is used in every step and the first only where `first` says so.
struct Branches {
    Branches(ddp_group* group, std::uint32_t flags) : borrowed(group), context(borrowed, with(flags)) {
        for (int i = 0; i < 2; ++i) {
            gradients[i].resize(600);
            context.add_param<float>(i == 0 ? "first" : "second", {20, 30}, nullptr, gradients[i].data());
        }
    }
    static ddp_context_options with(std::uint32_t flags) {
        auto options = ddp::Context::defaults();
        options.flags = flags;
        return options;
    }
    void step(int rank, bool first) {
        context.step_begin();
        for (int i = 1; i >= 0; --i) {
            if (i == 0 && !first) continue;
            for (int k = 0; k < 600; ++k)
                gradients[i][static_cast<std::size_t>(k)] =
                    static_cast<float>((k * (7 + 3 * i + rank) + k * k) % 101 - 50);
            context.grad_ready(i);
        }
        context.finalize();
    }

    BorrowedGroup borrowed;
    ddp::Context context;
    std::vector<float> gradients[2];
};

// What was left out of the first matrix waits for the next step that uses it: two steps without it change nothing.
TEST_P(AbsentLayers, LoseNothingOfWhatWasLeftOut) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Branches with(group, DDP_CONTEXT_FIND_UNUSED), without(group, DDP_CONTEXT_FIND_UNUSED);
        for (Branches* b : {&with, &without}) {
            b->context.use_hook(GetParam().hook, GetParam().options);
            b->context.commit();
            b->step(rank, true);
        }
        for (int s = 0; s < 2; ++s) with.step(rank, false);
        with.step(rank, true);
        without.step(rank, true);
        EXPECT_EQ(with.gradients[0], without.gradients[0]);
    });
}

// On one rank or on all.
TEST_P(AbsentGradients, KeepTheirErrorBitForBit) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Branches b(group, DDP_CONTEXT_FIND_UNUSED);
        b.context.use_hook(GetParam().hook, GetParam().options);
        b.context.commit();
        b.step(rank, true);
        const auto error_of_first = [&] {
            const Bytes file = b.context.save_hook_state();
            // Arrays are in the order of parameters: the first one's error comes first.
            const std::string text(file.begin(), file.end());
            const auto begin = text.find("error:first");
            EXPECT_NE(begin, std::string::npos);
            const auto offsets = text.find("data_offsets\":[", begin);
            const std::size_t at = std::stoul(text.substr(offsets + 15));
            std::uint64_t header = 0;
            std::memcpy(&header, file.data(), sizeof header);
            const auto start = file.begin() + static_cast<std::ptrdiff_t>(8 + header + at);
            return Bytes(start, start + 2400);
        };
        const Bytes before = error_of_first();
        EXPECT_NE(before, Bytes(2400));
        b.step(rank, false);
        EXPECT_EQ(error_of_first(), before);
        b.step(rank, rank == 0);
        EXPECT_EQ(error_of_first() == before, rank == 1);
        b.step(rank, true);
        EXPECT_NE(error_of_first(), before);
    });
}

}  // namespace
