// DDP_CONTEXT_CHECK: programs that make a mistake, and programs that look as if they did.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <random>

#include "capi/bad_input.h"
#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace check_test {

ddp_context_options checking(std::int64_t interval = 0, std::uint32_t flags = 0) {
    auto options = ddp::Context::defaults();
    options.flags = DDP_CONTEXT_CHECK | flags;
    options.check_interval = interval;
    options.bucket_cap_bytes = 64;
    return options;
}

void write_random(Model& model, int p, unsigned seed) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < model.size(p); ++i)
        model.grad(p)[i] =
            static_cast<float>(random()) / static_cast<float>(std::mt19937::max()) - 0.5f;
}

struct Case {
    bool view;
    const char* backend;
};

class CheckTest : public testing::TestWithParam<Case> {
protected:
    void run(int world, const std::function<void(int rank, ddp_group* group)>& body) {
        on_ranks({world, GetParam().backend}, body);
    }
    static bool view() { return GetParam().view; }
};

INSTANTIATE_TEST_SUITE_P(All, CheckTest,
                         testing::Values(Case{true, "threads"}, Case{false, "threads"},
                                         Case{true, "shm"}, Case{true, "tcp"}),
                         [](const auto& test) {
                             return std::string(test.param.backend) +
                                    (test.param.view ? "View" : "Copy");
                         });

// The mistake: rank 1 writes a gradient when it has announced it. Its bucket may be on its way, or
// wait for its other gradient.
TEST_P(CheckTest, AGradientWrittenAfterItWasAnnouncedIsFound) {
    for (const int victim : {0, 1}) {
        run(3, [&](int rank, ddp_group* group) {
            auto options = checking();
            options.bucket_cap_bytes = 0;  // one bucket
            Model model(group, {20, 30}, view(), options);
            model.context.commit();
            const auto step = [&](bool mistake) {
                for (int p : {1, 0}) {
                    write_random(model, p, static_cast<unsigned>(rank));
                    model.context.grad_ready(p);
                    if (mistake && p == victim) model.grad(p)[3] += 1;
                }
                if (mistake) model.grad(victim)[19] = 7;
                model.context.finalize();
            };
            step(false);
            const ddp::Error error = error_of([&] { step(rank == 1); });
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_INVALID_STATE, 1, victim, 0, 1}));
            EXPECT_THAT(error.what(), HasSubstr("after it was announced"));
        });
    }
}

// The mistake: the framework has put its gradients elsewhere, and nobody writes those that are
// announced.
TEST_P(CheckTest, AGradientThatNobodyWritesIsFound) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {40, 50}, view(), checking());
        model.context.commit();
        const auto step = [&](int number) {
            for (int p : {1, 0}) {
                if (p != 1 || rank != 0 || number < 2)
                    write_random(model, p, static_cast<unsigned>(10 * number + rank));
                model.context.grad_ready(p);
            }
            model.context.finalize();
        };
        step(0);
        step(1);
        const ddp::Error error = error_of([&] { step(2); });
        EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_MISSING_GRADIENT, 0, 1, 0, 2}));
        EXPECT_THAT(error.what(), HasSubstr(view() ? "ddp_grad_view" : "desc.grad"));
    });
}

// A single number takes a while to be believed, although from the second step on the result is no
// longer new.
TEST_P(CheckTest, AScalarThatNobodyWritesIsFoundLater) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {1}, view(), checking());
        model.context.commit();
        int steps = 0;
        const ddp::Error error = error_of([&] {
            for (; steps < 100; ++steps) {
                if (steps == 0) model.grad(0)[0] = 0.1f * static_cast<float>(rank + 1);
                model.context.grad_ready(0);
                model.context.finalize();
            }
        });
        EXPECT_EQ(error.status(), DDP_ERROR_MISSING_GRADIENT);
        EXPECT_EQ(steps, 16);
    });
}

// The mistake: rank 2 updates its values differently.
TEST_P(CheckTest, ValuesThatDifferAreFoundInTheStepThatComparesThem) {
    run(3, [&](int rank, ddp_group* group) {
        Model model(group, {5, 6, 7}, view(), checking(3));
        model.context.commit();
        int steps = 0;
        const ddp::Error error = error_of([&] {
            for (; steps < 20; ++steps) {
                for (int p : {2, 1, 0}) {
                    write_random(model, p, static_cast<unsigned>(steps * 3 + rank));
                    model.context.grad_ready(p);
                }
                model.context.finalize();
                for (int p : {0, 1, 2})
                    for (std::size_t i = 0; i < model.size(p); ++i)
                        model.data[static_cast<std::size_t>(p)][i] -=
                            (steps >= 4 && rank == 2 && p > 0 ? 0.11f : 0.1f) * model.grad(p)[i];
            }
        });
        EXPECT_EQ(steps, 6);
        EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_MISMATCH, 2, 1, -1, 6}));
        EXPECT_THAT(error.what(), HasSubstr("'p1' and of 1 more parameter differ"));
    });
}

TEST_P(CheckTest, ValuesThatDifferFromTheStartAreFoundInTheFirstStep) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {4}, view(), checking(0, DDP_CONTEXT_NO_INITIAL_BROADCAST));
        model.data[0][2] = static_cast<float>(rank);
        model.context.commit();
        model.context.grad_ready(0);
        EXPECT_EQ(facts_of([&] { model.context.finalize(); }),
                  (Facts{DDP_ERROR_MISMATCH, -1, 0, -1, 0}));
    });
}

// Numbers that somebody made up: the mean of one step is the gradient of rank 0 in the next.
TEST_P(CheckTest, RoundNumbersThatRepeatAreNone) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {50}, view(), checking());
        model.context.commit();
        for (int step = 0; step < 40; ++step) {
            model.fill(0, static_cast<float>(step + 2 * rank));
            model.context.grad_ready(0);
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, static_cast<float>(step + 1)));
        }
    });
}

// None of these is a mistake.
TEST_P(CheckTest, GradientsThatRepeatAreNone) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {50, 3, 4}, view(), checking(1));
        model.context.commit();
        for (int step = 0; step < 40; ++step) {
            // the same on all ranks and in all steps
            write_random(model, 0, 5);
            model.fill(1, static_cast<float>(rank));           // the same in all steps
            for (int i = 0; i < 4; ++i) model.grad(2)[i] = 0;  // always zero
            for (int p : {2, 1, 0}) model.context.grad_ready(p);
            model.context.finalize();
        }
    });
}

TEST_P(CheckTest, WithUnsyncedStepsUnusedParametersAndDiscardedStepsResultsAreAsWithout) {
    std::vector<float> results[2];
    for (const bool check : {false, true}) {
        run(2, [&](int rank, ddp_group* group) {
            auto options = check ? checking(1) : checking();
            options.flags = DDP_CONTEXT_FIND_UNUSED | (check ? DDP_CONTEXT_CHECK : 0);
            Model model(group, {33, 17, 5}, view(), options);
            model.context.commit();
            std::vector<float> all;
            for (int step = 0; step < 12; ++step) {
                model.context.set_sync(step % 3 != 1);
                model.context.step_begin();
                for (int p : {0, 2, 1}) {
                    // not used by one rank now and then
                    if (p == 2 && (step + rank) % 4 == 0) continue;
                    const float start = step % 3 == 2 ? model.grad(p)[0] : 0;
                    write_random(model, p, static_cast<unsigned>(step * 7 + rank));
                    model.grad(p)[0] += start;
                    model.context.grad_ready(p);
                }
                if (step == 6)
                    model.context.discard_step();
                else
                    model.context.finalize();
                if (step == 6)  // views are unspecified then
                    for (int p : {0, 1, 2}) model.fill(p, 0);
                const auto now = model.gradients();
                all.insert(all.end(), now.begin(), now.end());
            }
            if (rank == 0) results[check ? 1 : 0] = all;
        });
    }
    EXPECT_EQ(results[0], results[1]);
}

TEST_P(CheckTest, OptimizersMayWorkOnGradientsThatAreDone) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {20, 20, 20}, view(), checking(1));
        model.context.commit();
        for (int step = 0; step < 5; ++step) {
            for (int p : {2, 1, 0}) {
                write_random(model, p, static_cast<unsigned>(step * 2 + rank));
                model.context.grad_ready(p);
            }
            model.context.finalize_async();
            for (int p : {2, 1, 0}) {
                model.context.wait(p);
                for (std::size_t i = 0; i < 20; ++i) {
                    model.data[static_cast<std::size_t>(p)][i] -= model.grad(p)[i];
                    model.grad(p)[i] = 0;
                }
            }
            model.context.finalize();
        }
    });
}

TEST(Check, RanksWithoutInputsTrailBehind) {
    on_ranks({3, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {20}, true, checking(1, DDP_CONTEXT_JOIN));
        model.context.commit();
        for (int step = 0; step < 4 + 2 * rank; ++step) {
            model.context.step_begin();
            write_random(model, 0, static_cast<unsigned>(step * 3 + rank));
            model.context.grad_ready(0);
            model.context.finalize();
            for (std::size_t i = 0; i < 20; ++i) model.data[0][i] -= model.grad(0)[i];
        }
        model.context.join();
    });
}

TEST(Check, HooksThatLetRanksDifferAreLeftAlone) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {20}, true, checking(1));
        model.context.commit();
        model.context.use_hook("noop");
        for (int step = 0; step < 4; ++step) {
            write_random(model, 0, static_cast<unsigned>(step * 3 + rank));
            model.context.grad_ready(0);
            model.context.finalize();
            for (std::size_t i = 0; i < 20; ++i) model.data[0][i] -= model.grad(0)[i];
        }
    });
}

TEST(Check, EveryRankHasToAskForIt) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {20}, true, rank == 0 ? checking(25) : ddp::Context::defaults());
        EXPECT_EQ(facts_of([&] { model.context.commit(); }), (Facts{DDP_ERROR_MISMATCH, 1}));
    });
}

TEST(Check, ViewsAreAlignedAndStayReadable) {
    on_ranks({1, "threads"}, [](int, ddp_group* group) {
        ddp_layout* layout = nullptr;
        float* view = nullptr;
        {
            Model model(group, {3, 5}, true, checking());
            model.context.commit();
            for (int p : {0, 1})
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model.grad(p)) % 64, 0u);
            EXPECT_TRUE(model.holds(0, 0, 0));
            view = model.grad(1);
            ASSERT_EQ(ddp_layout_hold(model.context.get(), &layout, nullptr), DDP_OK);
        }
        view[4] = 5;
        EXPECT_EQ(view[4], 5);
        ddp_layout_free(layout);
    });
}

// The environment of a process has no lock: these run on one thread.
class CheckEnvironment : public LoneContext {
protected:
    void TearDown() override {
        unsetenv("DDP_DEBUG");
        LoneContext::TearDown();
    }
    // Whether a context that is made now looks for mistakes.
    bool checks() {
        recreate();
        commit({"a"});
        void* view = nullptr;
        EXPECT_EQ(ddp_grad_view(context, 0, &view, nullptr), DDP_OK);
        EXPECT_EQ(ddp_grad_ready(context, 0, nullptr), DDP_OK);
        static_cast<float*>(view)[0] = 1;
        return ddp_finalize(context, nullptr) == DDP_ERROR_INVALID_STATE;
    }
};

TEST_F(CheckEnvironment, TurnsItOn) {
    for (const char* off : {"", "off", "0"}) {
        setenv("DDP_DEBUG", off, 1);
        EXPECT_FALSE(checks()) << off;
    }
    setenv("DDP_DEBUG", "check=-1", 1);
    EXPECT_TRUE(checks());
}

TEST_F(CheckEnvironment, IsReadStrictly) {
    ddp_context* none = nullptr;
    for (const char* wrong : {"on", "check=", "check=x", "check=-2", "check=1 ", "Check"}) {
        setenv("DDP_DEBUG", wrong, 1);
        expect_refused({{wrong, DDP_ERROR_INVALID_ARGUMENT, {"DDP_DEBUG"}, [&](ddp_error** e) {
                             return ddp_context_create(group, nullptr, &none, e);
                         }}});
    }
    unsetenv("DDP_DEBUG");
    auto options = checking(-2);
    expect_refused({{"interval",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"check_interval is -2", "-1 (never)"},
                     calling(ddp_context_create, group, &options, &none)}});
}

}  // namespace check_test
