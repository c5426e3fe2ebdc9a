// Parameters that no rank uses for a while, with hooks that keep what they leave out.
#include <gtest/gtest.h>

#include <vector>

#include "hooks/state_file.h"
#include "support/model.h"
#include "support/ranks.h"

namespace absent_test {

struct Kept {
    const char* hook;
    const char* options;
};
void PrintTo(const Kept& kept, std::ostream* out) {
    *out << kept.hook;
}

class AbsentGradients : public testing::TestWithParam<Kept> {};
INSTANTIATE_TEST_SUITE_P(Hooks, AbsentGradients,
                         testing::Values(Kept{"onebit", "min_elements=0"},
                                         Kept{"topk", "min_elements=0"},
                                         Kept{"chunks", "chunk=16,warmup=0,momentum=0.9"},
                                         Kept{"powersgd", "start=0,min_rate=0.1"},
                                         Kept{"batched_powersgd", "start=0,min_rate=0.1"}));

// Hooks that compress each parameter by itself.
class AbsentLayers : public AbsentGradients {};
INSTANTIATE_TEST_SUITE_P(Hooks, AbsentLayers,
                         testing::Values(Kept{"onebit", "min_elements=0"},
                                         Kept{"topk", "min_elements=0"},
                                         Kept{"powersgd", "start=0,min_rate=0.1"}));

// Two matrices, of which the second is used in every step and the first only where `first` says so.
// Both were used in one step.
struct Branches {
    Branches(ddp_group* group, const Kept& kept) : borrowed(group), context(borrowed, options()) {
        for (int i = 0; i < 2; ++i) {
            gradients[i].resize(600);
            context.add_param<float>(i == 0 ? "first" : "second", {20, 30}, nullptr,
                                     gradients[i].data());
        }
        context.use_hook(kept.hook, kept.options);
        context.commit();
        step(ddp_group_rank(group), true);
    }
    static ddp_context_options options() {
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_FIND_UNUSED;
        return options;
    }
    void step(int rank, bool first) {
        context.step_begin();
        for (int i = 1; i >= 0; --i)
            if (i == 1 || first) give(rank, i);
        context.finalize();
    }
    void give(int rank, int i) {
        for (int k = 0; k < 600; ++k)
            gradients[i][static_cast<std::size_t>(k)] =
                static_cast<float>((k * (7 + 3 * i + rank) + k * k) % 101 - 50);
        context.grad_ready(i);
    }
    StateFile error_of_first() { return array_of(context.save_hook_state(), "error:first"); }

    BorrowedGroup borrowed;
    ddp::Context context;
    std::vector<float> gradients[2];
};

// The error feedback of the first matrix waits for the next step that uses it: two steps without it
// change nothing.
TEST_P(AbsentLayers, LoseNothingOfWhatWasLeftOut) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Branches with(group, GetParam()), without(group, GetParam());
        for (int s = 0; s < 2; ++s) with.step(rank, false);
        with.step(rank, true);
        without.step(rank, true);
        EXPECT_EQ(with.gradients[0], without.gradients[0]);
    });
}

// On one rank or on all.
TEST_P(AbsentGradients, KeepTheirErrorBitForBit) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Branches b(group, GetParam());
        const StateFile before = b.error_of_first();
        EXPECT_NE(before, StateFile(2400));
        b.step(rank, false);
        EXPECT_EQ(b.error_of_first(), before);
        b.step(rank, rank == 0);
        EXPECT_EQ(b.error_of_first() == before, rank == 1);
        b.step(rank, true);
        EXPECT_NE(b.error_of_first(), before);
    });
}

// Rank 1 ends the group when rank 0 has sent what it has of the bucket.
TEST_P(AbsentGradients, KeepTheirErrorInAStepThatFails) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        ddp_group* spare = nullptr;
        ASSERT_EQ(ddp_group_split(group, 0, rank, &spare, nullptr), DDP_OK);
        BorrowedGroup next(spare);
        {
            Branches b(group, GetParam());
            const StateFile before = b.error_of_first();
            b.context.step_begin();
            if (rank == 0) {
                b.context.mark_unused({0});
                b.give(rank, 1);
            }
            next.barrier();
            if (rank == 1) b.context.abort("a test");
            EXPECT_THROW(b.context.finalize(), ddp::Error);
            b.context.set_group(next);
            EXPECT_EQ(b.error_of_first(), before);
            b.step(rank, false);
            EXPECT_EQ(b.error_of_first(), before);
            b.step(rank, true);
            EXPECT_NE(b.error_of_first(), before);
        }
        ddp_group_free(spare);
    });
}

// Each rank has given something else before it discards.
TEST_P(AbsentGradients, KeepTheirErrorInAStepThatIsDiscarded) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Branches b(group, GetParam());
        const StateFile before = b.error_of_first();
        b.context.step_begin();
        b.context.mark_unused({0});
        if (rank == 0) b.give(rank, 1);
        b.context.discard_step();
        EXPECT_EQ(b.error_of_first(), before);
        b.step(rank, true);
        EXPECT_NE(b.error_of_first(), before);
    });
}

}  // namespace absent_test
