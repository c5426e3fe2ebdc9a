// ddp_optimizer_in_step: what it refuses, and what ranks compare. Its numbers are in
// optimizer_test.cc.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace optimizer_in_step_test {

using testing::HasSubstr;

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

struct Small : Model {
    explicit Small(ddp_group* group, std::uint32_t flags = DDP_CONTEXT_SHARD, bool view = true,
                   std::int64_t elements = 1000)
        : Model(group, {elements, 3, 500}, view, options(flags)) {}
    static ddp_context_options options(std::uint32_t flags) {
        auto result = ddp::Context::defaults();
        result.flags = flags;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 2000;
        return result;
    }
    void backward() {
        for (int p = 0; p < count(); ++p) context.wait_value(p);
        for (int p = count(); p-- > 0;) {
            fill(p, 1);
            context.grad_ready(p);
        }
        context.finalize();
    }
    // The value that each rank has of one element, and that is the same.
    float value() {
        for (int p = 0; p < count(); ++p) context.wait_value(p);
        return data[0][4];
    }
};

TEST(OptimizerInStep, StepsUntilItIsTakenOut) {
    on_ranks(2, [](int, ddp_group* group) {
        Small model(group);
        model.context.commit();
        {
            ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
            optimizer.in_step(0.5);
            EXPECT_THAT(message_of([&] { optimizer.step(); }),
                        HasSubstr("no step has given means"));
            model.backward();
            EXPECT_EQ(model.value(), -2.5);
            EXPECT_THAT(message_of([&] { optimizer.step(); }),
                        HasSubstr("ddp_set_update has sent the values"));
            optimizer.set("lr", 2);
            model.backward();
            EXPECT_EQ(model.value(), -7.5);
            optimizer.in_step(1);
        }
        model.backward();  // the context keeps it
        EXPECT_EQ(model.value(), -17.5);
        model.context.set_update(nullptr);
        model.backward();
        model.context.publish();
        EXPECT_EQ(model.value(), -17.5);
    });
}

// A later ddp_set_update stands, whatever the optimizer is told.
TEST(OptimizerInStep, AnotherUpdateReplacesIt) {
    on_ranks(2, [](int, ddp_group* group) {
        Small model(group);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
        optimizer.in_step();
        model.context.set_update([](const ddp_piece* const* pieces, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i)
                for (std::int64_t k = 0; k < pieces[i]->count; ++k)
                    static_cast<float*>(pieces[i]->value)[k] = 9;
        });
        optimizer.set("lr", 2);
        model.backward();
        EXPECT_EQ(model.value(), 9);
    });
}

constexpr int kFrozen = 4;

// All values of this rank after steps with buckets of several blocks (DDP_BACKEND_BLOCK_BYTES),
// whose gradients depend on the values.
std::vector<std::vector<float>> train_large(int rank, ddp_group* group, bool in_step, bool view) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = 700'000;
    options.flags = in_step ? DDP_CONTEXT_SHARD : 0;
    Model model(group, {40'000, 3, 70'001, 17, 50'000, 90'000, 1, 5'000}, view, options);
    for (int p = 0; p < model.count(); ++p)
        for (std::size_t k = 0; k < model.size(p); ++k)
            model.data[static_cast<std::size_t>(p)][k] = static_cast<float>(k % 251) / 16;
    model.context.commit();
    ddp::Optimizer optimizer(model.context, "adamw", "lr=0.01");
    if (in_step) optimizer.in_step(0.7);
    for (int step = 0; step < 4; ++step) {
        model.context.set_frozen({kFrozen}, step == 2);
        for (int p = model.count(); p-- > 0;) {
            if (in_step) model.context.wait_value(p);
            if (p == kFrozen && step == 2) continue;
            const auto& value = model.data[static_cast<std::size_t>(p)];
            float* const gradient = model.grad(p);
            for (std::size_t k = 0; k < value.size(); ++k)
                gradient[k] = 0.3f * value[k] + static_cast<float>((k + 7) % 13) -
                              static_cast<float>(4 * rank + step);
            model.context.grad_ready(p);
        }
        model.context.finalize();
        if (!in_step) optimizer.step(0.7);
    }
    for (int p = 0; p < model.count() && in_step; ++p) {
        model.context.wait_value(p);
        if (!view) continue;
        EXPECT_EQ(std::count(model.grad(p), model.grad(p) + model.size(p), 0.0f),
                  static_cast<std::ptrdiff_t>(model.size(p)));
    }
    return model.data;
}

TEST(OptimizerInStep, UpdatesBlocksToTheBitsOfWholeParameters) {
    for (const auto& [backend, world, view] :
         {std::tuple("shm", 2, false), std::tuple("shm", 3, true), std::tuple("tcp", 2, true)}) {
        RankOptions options(world, backend);
        options.flags = DDP_GROUP_DETERMINISTIC;
        on_ranks(options, [&, in_buckets = view](int rank, ddp_group* group) {
            const auto want = train_large(rank, group, false, in_buckets);
            EXPECT_NE(want[0][0], 0);
            EXPECT_EQ(train_large(rank, group, true, in_buckets), want) << "rank " << rank;
        });
    }
}

// Before any value has changed.
void expect_mismatch(const RankOptions& options, std::int64_t elements) {
    for (const std::string how : {"scale", "lr", "name", "installed", "later"})
        on_ranks(options, [&](int rank, ddp_group* group) {
            Small model(group, DDP_CONTEXT_SHARD, true, elements);
            model.context.commit();
            ddp::Optimizer sgd(model.context, "sgd", "lr=1"), adamw(model.context, "adamw");
            const bool other = rank == 1;
            if (other && how == "lr") sgd.set(2, "lr", 0.5);
            if (other && how == "name")
                adamw.in_step();
            else if (!other || how != "installed")
                sgd.in_step(other && how == "scale" ? 2 : 1);
            if (how == "later") {
                model.backward();
                EXPECT_EQ(model.value(), -5);
                if (other) sgd.set("momentum", 0.9);
            }
            const auto before = model.data;
            EXPECT_THAT(message_of([&] {
                            model.backward();
                            model.value();
                        }),
                        HasSubstr("their optimizers have different settings"))
                << how;
            EXPECT_EQ(model.data, before) << how;
        });
}

TEST(OptimizerInStep, RanksDoTheSame) {
    expect_mismatch(3, 1000);
    expect_mismatch({2, "shm"}, 200'000);
}

// Values of all ranks after two epochs in which ranks have different numbers of inputs. join: they
// call ddp_join; otherwise they give zeros until the last one is done.
std::vector<std::vector<std::vector<float>>> train_unevenly(int world, bool join, bool view) {
    std::vector<std::vector<std::vector<float>>> values(static_cast<std::size_t>(world));
    RankOptions options(world);
    options.flags = DDP_GROUP_DETERMINISTIC;
    on_ranks(options, [&](int rank, ddp_group* group) {
        Small model(group,
                    join ? DDP_CONTEXT_SHARD | DDP_CONTEXT_JOIN : std::uint32_t{DDP_CONTEXT_SHARD},
                    view);
        model.context.set_owner(2, DDP_OWNER_WHOLE);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "adamw", "lr=0.1");
        optimizer.in_step();
        for (int epoch = 0; epoch < 2; ++epoch) {
            const auto inputs_of = [epoch](int r) { return 1 + (3 * r + 2 * epoch) % 4; };
            const int inputs = inputs_of(rank);
            int most = 0;
            for (int r = 0; r < world; ++r) most = std::max(most, inputs_of(r));
            for (int step = 0; step < (join ? inputs : most); ++step) {
                const bool has_input = step < inputs;
                if (join) model.context.step_begin();
                for (int p = model.count(); p-- > 0;) {
                    model.context.wait_value(p);
                    float* const gradient = model.grad(p);
                    const auto& value = model.data[static_cast<std::size_t>(p)];
                    for (std::size_t k = 0; k < model.size(p); ++k)
                        gradient[k] =
                            has_input ? 0.3f * value[k] + static_cast<float>(rank - step) : 0;
                    model.context.grad_ready(p);
                }
                model.context.finalize();
            }
            if (join) model.context.join();
        }
        for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
        values[static_cast<std::size_t>(rank)] = model.data;
    });
    return values;
}

TEST(OptimizerInStep, ARankThatHasJoinedUpdatesItsShard) {
    for (const int world : {1, 2, 3, 5})
        for (const bool view : {false, true}) {
            const auto want = train_unevenly(world, false, view);
            EXPECT_NE(want[0][0][0], 0);
            for (const auto& values : want) EXPECT_EQ(values, want[0]);
            EXPECT_EQ(train_unevenly(world, true, view), want) << world << view;
        }
}

TEST(OptimizerInStep, JoiningNeedsIt) {
    on_ranks(2, [](int, ddp_group* group) {
        Small model(group, DDP_CONTEXT_SHARD | DDP_CONTEXT_JOIN);
        model.context.commit();
        for (int i = 0; i < 2; ++i) {
            EXPECT_THAT(message_of([&] { model.context.step_begin(); }),
                        HasSubstr("updates what it owns only if that happens in the step"));
            EXPECT_THAT(message_of([&] { model.context.join(); }),
                        HasSubstr("call ddp_optimizer_in_step or ddp_set_update first"));
            ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
            EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("in ddp_join would not"));
            optimizer.in_step();
            model.context.step_begin();
            model.backward();
            EXPECT_EQ(model.value(), -5 * (i + 1));
            model.context.join();
            model.context.set_update(nullptr);
        }
    });
}

TEST(OptimizerInStep, MistakesAreNamed) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        {
            Small plain(group, 0);
            plain.context.commit();
            ddp::Optimizer optimizer(plain.context, "sgd");
            EXPECT_THAT(message_of([&] { optimizer.in_step(); }), HasSubstr("DDP_CONTEXT_SHARD"));
        }
        {
            Small finding(group, DDP_CONTEXT_SHARD | DDP_CONTEXT_FIND_UNUSED);
            finding.context.commit();
            ddp::Optimizer optimizer(finding.context, "sgd");
            EXPECT_THAT(message_of([&] { optimizer.in_step(); }),
                        HasSubstr("agree at the end of a step"));
        }
        Small model(group);
        model.context.set_owner(0, DDP_OWNER_WHOLE);
        model.context.commit();
        ddp::Optimizer lamb(model.context, "lamb"), sgd(model.context, "sgd", "lr=1");
        EXPECT_THAT(
            message_of([&] { lamb.in_step(); }),
            HasSubstr("is updated with a norm over all of it, and each rank owns elements"));
        for (const double scale : {-1.0, double{INFINITY}, std::nan("")})
            EXPECT_THAT(message_of([&] { sgd.in_step(scale); }), HasSubstr("scale is "));
        sgd.in_step();
        model.fill(2, 1);
        model.context.grad_ready(2);
        EXPECT_THAT(message_of([&] { sgd.in_step(2); }), HasSubstr("is under way"));
        EXPECT_THAT(message_of([&] { sgd.set("lr", 2); }), HasSubstr("is under way"));
        for (const int p : {1, 0}) {
            model.fill(p, 1);
            model.context.grad_ready(p);
        }
        model.context.finalize();
        EXPECT_EQ(model.value(), -5);
        const auto before = model.data;
        ddp::Group alone = borrowed.split(rank, 0);
        model.context.set_group(alone);
        EXPECT_THAT(message_of([&] { sgd.in_step(); }), HasSubstr("owns other pieces since"));
        EXPECT_THAT(message_of([&] { model.backward(); }), HasSubstr("owns other pieces since"));
        EXPECT_EQ(model.data, before);
    });
}

}  // namespace optimizer_in_step_test
