// Hooks over groups that take turns: the same bits as over one group, buckets in order, chains on
// several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "ddp/averager.hpp"
#include "hooks/matrix_model.h"
#include "support/error_of.h"

namespace round_robin_test {

const std::vector<Shape> kShapes = {{40, 30}, {30},        {64, 16}, {7, 9},
                                    {1},      {20, 20, 2}, {33, 12}, {128}};
constexpr int kWorld = 3, kSteps = 4;

ddp_context_options small_buckets(std::uint32_t flags = 0) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 2000;
    options.flags |= flags;
    return options;
}

// The gradients after each of a few steps, of every rank.
Bytes train(unsigned groups, const std::function<void(ddp::Context&)>& install,
            std::uint32_t flags = 0) {
    Seen seen;
    RankOptions options(kWorld, "tcp");
    options.flags = DDP_GROUP_DETERMINISTIC;
    options.round_robin = groups;
    on_ranks(options, [&](int rank, ddp_group* group) {
        MatrixModel model(group, kShapes, DDP_F32, true, small_buckets(flags));
        model.context.commit();
        install(model.context);
        for (int step = 0; step < kSteps; ++step) {
            model.step([&](int i) {
                Numbers values(static_cast<std::size_t>(model.size(i)));
                for (std::size_t k = 0; k < values.size(); ++k)
                    values[k] = std::sin(static_cast<double>(k * static_cast<std::size_t>(i + 1)) +
                                         rank + 0.3 * step);
                return values;
            });
            seen.add(rank, model.bytes());
        }
    });
    EXPECT_TRUE(seen.same(kWorld));
    return seen.of(0);
}

ddp::Work reduce(ddp_group* group, ddp_bucket* bucket, ddp_reduce_op op) {
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                      ddp_bucket_buffer(bucket), ddp_bucket_count(bucket), ddp_bucket_dtype(bucket),
                      op, &work);
    return ddp::Work(work);
}

TEST(RoundRobinHooks, BuiltInOnesGiveTheBitsOfOneGroup) {
    const std::pair<const char*, const char*> hooks[] = {
        {"allreduce", ""},
        {"fp16", ""},
        {"bf16", ""},
        {"powersgd", "start=1,rank=2"},
        {"powersgd", "start=1,rank=4,warm_start=0"},
        {"fp16(powersgd)", "start=1"},
        {"batched_powersgd", "start=1"},
        {"quantize_per_channel", "block=64"},
        {"quantize", "block=64,rounding=stochastic,error_feedback=1"},
        {"onebit", "min_elements=16"},
        {"topk", "ratio=0.1,min_elements=16"},
        {"chunks", "chunk=16,ratio=0.1,momentum=0.9,warmup=2"},
        {"post_local_sgd", "start=2,subgroup=3"},
    };
    for (const auto& [name, options] : hooks) {
        const auto install = [n = name, o = options](ddp::Context& context) {
            ddp::detail::call(ddp_use_hook, context.get(), n, o);
        };
        const Bytes expected = train(1, install);
        for (const unsigned groups : {2u, 3u})
            EXPECT_EQ(train(groups, install), expected) << name << " over " << groups << " groups";
    }
}

// Through every group, also from continuations that only a thread of the program may run, and
// through the handle of all.
TEST(RoundRobinHooks, ChainsOfTheProgramGiveTheBitsOfOneGroup) {
    for (const std::uint32_t flags : {0u, std::uint32_t{DDP_WORK_ANY_THREAD}}) {
        const auto install = [flags](ddp::Context& context) {
            context.set_comm_hook([flags](ddp_group* group, ddp_bucket* bucket) {
                return reduce(group, bucket, DDP_SUM)
                    .then(
                        [group, bucket] {
                            auto* x = static_cast<float*>(ddp_bucket_buffer(bucket));
                            for (std::size_t i = 0; i < ddp_bucket_count(bucket); ++i)
                                x[i] /= kWorld;
                            return reduce(group, bucket, DDP_MAX);
                        },
                        flags)
                    .then([group, bucket] { return reduce(group, bucket, DDP_AVG); }, flags);
            });
        };
        const Bytes expected = train(1, install);
        for (const unsigned groups : {2u, 3u})
            EXPECT_EQ(train(groups, install), expected) << groups << " groups";
    }
}

TEST(RoundRobinHooks, FunctionsOnTheResultGiveTheBitsOfOneGroup) {
    for (const std::uint32_t flags : {0u, std::uint32_t{DDP_WORK_ANY_THREAD}}) {
        const auto install = [flags](ddp::Context& context) {
            auto twice = +[](void*, ddp_group*, ddp_bucket* bucket, ddp_error**) -> ddp_status {
                auto* x = static_cast<float*>(ddp_bucket_buffer(bucket));
                for (std::size_t i = 0; i < ddp_bucket_count(bucket); ++i) x[i] *= 2;
                return DDP_OK;
            };
            ddp::detail::call(ddp_use_hook, context.get(), "fp16", "");
            ddp::detail::call(ddp_hook_then, context.get(), twice, static_cast<void*>(nullptr),
                              static_cast<void (*)(void*)>(nullptr), flags);
        };
        const Bytes expected = train(1, install);
        EXPECT_EQ(train(2, install), expected);
    }
}

// A hook that keeps the context's own group instead of the one it is given stays on the bucket's
// group.
TEST(RoundRobinHooks, TheHandleOfAllMayBeUsedInAHook) {
    RankOptions options(2, "tcp");
    options.round_robin = 2;
    on_ranks(options, [](int rank, ddp_group* all) {
        Model model(all, {100, 200, 300, 400, 500}, true, small_buckets());
        model.context.commit();
        model.context.set_comm_hook([all](ddp_group*, ddp_bucket* bucket) {
            return reduce(all, bucket, DDP_SUM).then([all, bucket] {
                return reduce(all, bucket, DDP_MAX);
            });
        });
        for (int step = 0; step < 5; ++step) {
            // Turns that are taken between the steps change nothing.
            float x = 1;
            if (step % 2) BorrowedGroup(all).allreduce(&x, 1).wait();
            for (int i = model.count() - 1; i >= 0; --i) {
                model.fill(i, static_cast<float>(rank));
                model.context.grad_ready(i);
            }
            model.context.finalize();
            for (int i = 0; i < model.count(); ++i) EXPECT_TRUE(model.holds(i, 1, 2));
        }
    });
}

// With votes hooks are called in continuations, which several threads run: still in order and one
// at a time.
TEST(RoundRobinHooks, AreCalledInOrderAlsoAfterVotes) {
    for (const unsigned groups : {1u, 3u}) {
        RankOptions options(3, "threads");
        options.round_robin = groups;
        on_ranks(options, [&](int rank, ddp_group* group) {
            // Parameters of two buckets or so are not used in a step.
            Model model(group, std::vector<std::int64_t>(24, 300), true,
                        small_buckets(DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_SKIP_UNUSED_BUCKETS));
            model.context.commit();
            std::vector<int> called;
            std::atomic<int> inside{0};
            model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                EXPECT_EQ(inside.fetch_add(1), 0);
                called.push_back(ddp_bucket_index(bucket));
                std::this_thread::sleep_for(std::chrono::microseconds(100 * rank));
                inside.fetch_sub(1);
                return reduce(g, bucket, DDP_SUM).then([g, bucket] {
                    return reduce(g, bucket, DDP_MAX);
                });
            });
            for (int step = 0; step < 5; ++step) {
                called.clear();
                const auto used = [step](int i) { return (i / 4 + step) % 3 != 0; };
                // Any thread that finds a callback runs it: several threads of a backward pass.
                std::vector<std::thread> threads;
                for (int t = 0; t < 3; ++t)
                    threads.emplace_back([&, t] {
                        for (int i = model.count() - 1 - t; i >= 0; i -= 3) {
                            if (!used(i)) continue;
                            model.fill(i, 1);
                            model.context.grad_ready(i);
                        }
                    });
                for (auto& thread : threads) thread.join();
                model.context.finalize();
                EXPECT_TRUE(std::is_sorted(called.begin(), called.end()));
                EXPECT_EQ(std::adjacent_find(called.begin(), called.end()), called.end());
                EXPECT_LT(called.size(),
                          static_cast<std::size_t>(ddp_context_bucket_count(model.context.get())));
                EXPECT_GE(called.size(), 2u);
                for (int i = 0; i < model.count(); ++i)
                    EXPECT_TRUE(!used(i) || model.holds(i, 3, 3)) << i;
            }
        });
    }
}

TEST(RoundRobinHooks, BuiltInOnesGiveTheBitsOfOneGroupAlsoAfterVotes) {
    for (const char* name : {"allreduce", "powersgd", "topk"}) {
        const auto install = [name](ddp::Context& context) {
            const char* options = *name == 'p' ? "start=1" : *name == 't' ? "min_elements=16" : "";
            ddp::detail::call(ddp_use_hook, context.get(), name, options);
        };
        const std::uint32_t flags = DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_SKIP_UNUSED_BUCKETS;
        EXPECT_EQ(train(3, install, flags), train(1, install, flags)) << name;
    }
}

TEST(RoundRobinHooks, AFailureNamesTheBucketEverywhere) {
    RankOptions options(2, "tcp");
    options.round_robin = 3;
    on_ranks(options, [](int rank, ddp_group* group) {
        Model model(group, {600, 600, 600, 600, 600}, true, small_buckets());
        const Facts facts = facts_of([&] {
            model.context.commit();
            model.context.set_comm_hook([rank](ddp_group* g, ddp_bucket* bucket) {
                return reduce(g, bucket, DDP_AVG).then([rank, bucket]() -> ddp::Work {
                    if (rank == 1 && ddp_bucket_index(bucket) == 1)
                        throw std::runtime_error("out of steam");
                    return {};
                });
            });
            for (int i = model.count() - 1; i >= 0; --i) model.context.grad_ready(i);
            model.context.finalize();
            // The failure is of rank 1 alone, and this rank may have been done before: it hears of
            // it in the next step.
            model.context.step_begin();
            for (int i = model.count() - 1; i >= 0; --i) model.context.grad_ready(i);
            model.context.finalize();
        });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_CALLBACK, 1, -1, 1, 0}));
    });
}

}  // namespace round_robin_test
