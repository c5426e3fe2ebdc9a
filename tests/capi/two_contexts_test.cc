// Two contexts of one shape on one group: where a rank uses them in another order, no rank takes
// one for the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace two_contexts_test {

using testing::AllOf;
using testing::HasSubstr;

// One parameter and one buffer of 100 elements.
struct OneModel {
    OneModel(const ddp::Group& group, const std::string& name,
             ddp_context_options options = ddp::Context::defaults())
        : context(group, options), value(100), gradient(100), buffer(100) {
        context.add_param<float>(name, {100}, value.data(), gradient.data());
        context.add_buffer<float>(name + ".mean", {100}, buffer.data());
    }

    void step(float value_of_gradient) {
        gradient.assign(gradient.size(), value_of_gradient);
        context.grad_ready(0);
        context.finalize();
    }

    ddp::Context context;
    std::vector<float> value, gradient, buffer;
};

// Both contexts are named in what each rank says. unit/comm/verdict_test.cc has the sentence.
testing::Matcher<std::string> names_both() {
    return AllOf(HasSubstr("'generator'"), HasSubstr("'critic'"));
}

using Use = std::function<void(OneModel& model, int rank)>;

// Rank 0 uses the generator first, and rank 1 the critic.
void expect_mismatch(const RankOptions& ranks, const Use& use,
                     ddp_context_options options = ddp::Context::defaults()) {
    on_ranks(ranks, [&](int rank, ddp_group* handle) {
        const BorrowedGroup group(handle);
        OneModel generator(group, "generator", options), critic(group, "critic", options);
        generator.context.commit();
        critic.context.commit();
        const ddp::Error error = error_of([&] {
            use(rank == 0 ? generator : critic, rank);
            use(rank == 0 ? critic : generator, rank);
        });
        EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH) << error.what();
        EXPECT_THAT(std::string(error.what()), names_both());
    });
}

void step(OneModel& model, int rank) {
    model.step(static_cast<float>(rank));
}

class TwoContexts : public testing::TestWithParam<RankOptions> {};
INSTANTIATE_TEST_SUITE_P(Groups, TwoContexts,
                         testing::Values(RankOptions(2, "threads"), RankOptions(2, "tcp"),
                                         RankOptions(2, "shm"),
                                         [] {
                                             RankOptions options(2, "tcp");
                                             options.round_robin = 2;
                                             return options;
                                         }()),
                         [](const auto& instance) {
                             return instance.param.backend +
                                    (instance.param.round_robin ? "_round_robin" : "");
                         });

TEST_P(TwoContexts, SteppedInAnotherOrder) {
    expect_mismatch(GetParam(), step);
}

TEST(TwoContextsOf, SteppedInAnotherOrderWithACheck) {
    ddp_context_options options = ddp::Context::defaults();
    options.flags |= DDP_CONTEXT_CHECK;
    expect_mismatch({2, "tcp"}, step, options);
}

// Exchanges that happen only between steps: the beginning of a step, and buffers.
TEST(TwoContextsOf, StepsBeginInAnotherOrder) {
    ddp_context_options options = ddp::Context::defaults();
    options.flags |= DDP_CONTEXT_JOIN;
    expect_mismatch(
        {2, "tcp"}, [](OneModel& model, int) { model.context.step_begin(); }, options);
}

TEST(TwoContextsOf, BuffersAreSentInAnotherOrder) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* handle) {
        const BorrowedGroup group(handle);
        auto options = ddp::Context::defaults();
        options.flags |= DDP_CONTEXT_NO_REBUILD;
        OneModel generator(group, "generator", options), critic(group, "critic", options);
        for (OneModel* model : {&generator, &critic}) {
            model->context.commit();
            step(*model, rank);
        }
        const ddp::Error error = error_of([&] {
            (rank == 0 ? generator : critic).context.step_begin();
            (rank == 0 ? critic : generator).context.step_begin();
        });
        EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
        EXPECT_THAT(std::string(error.what()), names_both());
    });
}

TEST(TwoContextsOf, ParametersAreAveragedInAnotherOrder) {
    expect_mismatch({2, "tcp"}, [](OneModel& model, int) {
        ddp_error* error = nullptr;
        const ddp_status status = ddp_average_parameters(model.context.get(), nullptr, &error);
        ddp::check(status, error);
    });
}

TEST(TwoContextsOf, ParametersAreSkippedInAnotherOrder) {
    expect_mismatch({2, "tcp"}, [](OneModel& model, int) { model.context.skip({0}, 0); });
}

TEST(TwoContextsOf, CommittedInAnotherOrder) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* handle) {
        const BorrowedGroup group(handle);
        OneModel one(group, "w"), other(group, "w");
        const ddp::Error error = error_of([&] { (rank == 0 ? one : other).context.commit(); });
        EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
        EXPECT_GE(error.rank(), 0) << error.what();
    });
}

// Operations of a hook and of the vote about a bucket belong to the context, too.
TEST(TwoContextsOf, VotesInAnotherOrder) {
    ddp_context_options options = ddp::Context::defaults();
    options.flags |= DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_SKIP_UNUSED_BUCKETS;
    expect_mismatch({2, "tcp"}, step, options);
}

TEST(TwoContextsOf, AHooksOwnCollectivesInAnotherOrder) {
    expect_mismatch({2, "tcp"}, [](OneModel& model, int rank) {
        model.context.set_comm_hook([](ddp_group* group, ddp_bucket*) -> ddp::Work {
            BorrowedGroup(group).barrier();
            return {};
        });
        step(model, rank);
    });
}

// A link of a round robin group is a group, too. Contexts of the two have different numbers.
TEST(TwoContextsOf, AContextOfALinkAndOneOfTheWhole) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* handle) {
        const BorrowedGroup group(handle);
        ddp_group *one = nullptr, *both = nullptr;
        ASSERT_EQ(ddp_group_split(handle, 0, rank, &one, nullptr), DDP_OK);
        ddp_group* const parts[] = {handle, one};
        ASSERT_EQ(ddp_group_round_robin(parts, 2, &both, nullptr), DDP_OK);
        {
            const ddp::Group whole(both), link(one);
            OneModel generator(link, "generator"), critic(whole, "critic");
            generator.context.commit();
            critic.context.commit();
            for (int i = 0; i < 2; ++i) {
                step(generator, rank);
                EXPECT_EQ(generator.gradient[0], 0.5F);
                step(critic, 100 + rank);
                EXPECT_EQ(critic.gradient[0], 100.5F);
            }
        }
    });
}

// The order of ddp_finalize is free: what counts is when buckets start.
TEST(TwoContextsOf, FinalizedInAnotherOrder) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* handle) {
        const BorrowedGroup group(handle);
        OneModel generator(group, "generator"), critic(group, "critic");
        for (OneModel* model : {&generator, &critic}) model->context.commit();
        for (int i = 0; i < 2; ++i) {
            generator.gradient.assign(100, static_cast<float>(rank));
            critic.gradient.assign(100, static_cast<float>(100 + rank));
            generator.context.grad_ready(0);
            critic.context.grad_ready(0);
            for (int k = 0; k < 2; ++k)
                ((rank == 0) == (k == 0) ? generator : critic).context.finalize();
            EXPECT_EQ(generator.gradient[0], 0.5F);
            EXPECT_EQ(critic.gradient[0], 100.5F);
        }
    });
}

// A context's number is new after it moved: all ranks move their contexts in one order.
TEST(TwoContextsOf, MovedToAnotherGroup) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* handle) {
        ddp_group* second = nullptr;
        ASSERT_EQ(ddp_group_split(handle, 0, rank, &second, nullptr), DDP_OK);
        const BorrowedGroup group(handle);
        const ddp::Group next(second);
        OneModel generator(group, "generator"), critic(group, "critic");
        for (OneModel* model : {&generator, &critic}) {
            model->context.commit();
            step(*model, rank);
        }
        for (OneModel* model : {&generator, &critic}) {
            model->context.set_group(next);
            step(*model, rank);
            EXPECT_EQ(model->gradient[0], 0.5F);
        }
        const ddp::Error error = error_of([&] {
            step(rank == 0 ? generator : critic, rank);
            step(rank == 0 ? critic : generator, rank);
        });
        EXPECT_THAT(std::string(error.what()), names_both());
    });
}

}  // namespace two_contexts_test
