// DDP_PARAM_IN_PLACE: gradients that are reduced in memory of the program's own.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "capi/bad_input.h"
#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace in_place_test {

using ddp::detail::call;
using testing::ElementsAre;
using testing::HasSubstr;

std::uint64_t copied_bytes(ddp::Context& context) {
    ddp_stats stats{};
    stats.struct_size = sizeof stats;
    call(ddp_stats_get, context.get(), &stats);
    return stats.copied_bytes;
}

ddp_context_options with_cap(std::uint64_t bytes, std::uint32_t flags = 0) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    options.flags = flags;
    return options;
}

// A model whose gradients lie in one block, in registration order, with `gap` elements after
// parameter `gap_after`.
struct BlockModel {
    BlockModel(ddp_group* group, std::vector<std::int64_t> sizes_, bool shared,
               ddp_context_options options = ddp::Context::defaults(), int gap_after = -1,
               std::size_t gap = 0)
        : borrowed(group), sizes(std::move(sizes_)), context(borrowed, options) {
        const std::size_t count = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) + gap;
        if (shared) {
            void* memory = nullptr;
            call(ddp_mem_alloc, group, 4 * count, &memory);
            block = {static_cast<float*>(memory), [](float* p) { ddp_mem_free(p, nullptr); }};
        } else {
            block = {new float[count](), [](float* p) { delete[] p; }};
        }
        std::size_t at = 0;
        for (int p = 0; p < this->count(); ++p) {
            places.push_back(block.get() + at);
            at += size(p) + (p == gap_after ? gap : 0);
            data.emplace_back(size(p));
            std::string name = std::to_string(p);
            context.add_param<float>(name.insert(0, 1, 'p'), {static_cast<std::int64_t>(size(p))},
                                     data.back().data(), places.back(), DDP_PARAM_IN_PLACE);
        }
    }
    int count() const { return static_cast<int>(sizes.size()); }
    std::size_t size(int p) const {
        return static_cast<std::size_t>(sizes[static_cast<std::size_t>(p)]);
    }
    void fill(int p, float value) {
        for (std::size_t k = 0; k < size(p); ++k) at(p)[k] = value + static_cast<float>(k % 1000);
    }
    bool holds(int p, float value) {
        for (std::size_t k = 0; k < size(p); ++k)
            if (at(p)[k] != value + static_cast<float>(k % 1000)) return false;
        return true;
    }
    float* at(int p) { return places[static_cast<std::size_t>(p)]; }
    std::vector<int> buckets() {
        std::vector<int> result;
        for (int p = 0; p < count(); ++p)
            result.push_back(ddp_context_param_bucket(context.get(), p));
        return result;
    }

    BorrowedGroup borrowed;
    std::vector<std::int64_t> sizes;
    std::unique_ptr<float[], void (*)(float*)> block{nullptr, [](float*) {}};
    std::vector<float*> places;
    std::vector<std::vector<float>> data;
    ddp::Context context;
};

// Rank r gives r + step, so that the mean is (world - 1) / 2 + step.
void train(BlockModel& model, int rank, int world, const std::vector<int>& order, int steps = 3) {
    for (int step = 0; step < steps; ++step) {
        model.context.step_begin();
        for (int p : order) {
            model.fill(p, static_cast<float>(rank + step));
            model.context.grad_ready(p);
        }
        model.context.finalize();
        for (int p : order)
            EXPECT_TRUE(
                model.holds(p, static_cast<float>(world - 1) / 2 + static_cast<float>(step)))
                << "p" << p;
    }
}

struct Case {
    const char* backend;
    int world;
    bool shared;  // the block is of ddp_mem_alloc
};

class InPlaceTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, InPlaceTest,
                         testing::Values(Case{"shm", 3, true}, Case{"shm", 2, false},
                                         Case{"gloo", 2, false}, Case{"tcp", 3, false},
                                         Case{"threads-plain", 2, false},
                                         Case{"threads", 1, false}),
                         [](const auto& test) {
                             std::string name =
                                 test.param.backend + std::to_string(test.param.world);
                             std::erase(name, '-');
                             return name + (test.param.shared ? "shared" : "");
                         });

// Sizes that no cache line divides, and three buckets.
const std::vector<std::int64_t> kSizes = {300'001, 40'003, 0, 270'001, 5, 270'000};

TEST_P(InPlaceTest, NothingIsCopied) {
    const Case& c = GetParam();
    on_ranks({c.world, c.backend}, [&](int rank, ddp_group* group) {
        BlockModel model(group, kSizes, c.shared, with_cap(1 << 20));
        model.context.commit();
        for (int p : {0, 1, 3, 4, 5}) EXPECT_EQ(model.context.grad_view<float>(p), model.at(p));
        train(model, rank, c.world, {5, 4, 3, 2, 1, 0});
        // A host's ranks pass on memory that other ranks cannot reach through memory that they
        // share.
        const bool staged = std::string(c.backend) == "shm" && !c.shared;
        EXPECT_EQ(copied_bytes(model.context) > 0, staged);
    });
}

TEST_P(InPlaceTest, ScaledSumsAndUnsyncedStepsAreAsOfViews) {
    const Case& c = GetParam();
    on_ranks({c.world, c.backend}, [&](int rank, ddp_group* group) {
        auto options = with_cap(64);
        options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
        BlockModel model(group, {3, 70, 2}, c.shared, options);
        model.context.commit();
        call(ddp_set_weight, model.context.get(), static_cast<double>(rank + 1));
        for (const bool sync : {false, true}) {
            model.context.set_sync(sync);
            model.context.step_begin();
            for (int p : {1, 2, 0}) {
                model.fill(p, static_cast<float>(rank));
                model.context.grad_ready(p);
            }
            model.context.finalize();
        }
        double sum = 0, weights = 0;
        for (int r = 0; r < c.world; ++r) sum += (r + 1) * r, weights += r + 1;
        for (int p : {0, 1, 2}) EXPECT_NEAR(model.at(p)[1], sum / weights + 1, 1e-6);
    });
}

TEST(InPlace, BucketsAreRangesFromTheEndOfTheBlock) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {10, 10, 10, 10, 10}, false, with_cap(80));
        model.context.commit();
        EXPECT_THAT(model.buckets(), ElementsAre(2, 1, 1, 0, 0));
        train(model, rank, 2, {0, 2, 1, 4, 3});
        // The rebuild has changed what is sent first, and nothing else.
        EXPECT_THAT(model.buckets(), ElementsAre(0, 1, 1, 2, 2));
    });
}

TEST(InPlace, AGapInTheBlockIsNotSent) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {10, 10, 10}, false, with_cap(1 << 20), 0, 7);
        for (int k = 0; k < 7; ++k) model.at(0)[10 + k] = static_cast<float>(rank);
        model.context.commit();
        EXPECT_THAT(model.buckets(), ElementsAre(1, 0, 0));
        train(model, rank, 2, {2, 1, 0});
        for (int k = 0; k < 7; ++k) EXPECT_EQ(model.at(0)[10 + k], static_cast<float>(rank));
    });
}

// A bucket is what all ranks can send as one range.
TEST(InPlace, RanksMayHaveDifferentGaps) {
    on_ranks({3, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {10, 10, 10, 10}, false, with_cap(1 << 20),
                         rank == 1   ? 0
                         : rank == 2 ? 2
                                     : -1,
                         rank == 0 ? 0 : 3);
        model.context.commit();
        EXPECT_THAT(model.buckets(), ElementsAre(2, 1, 1, 0));
        train(model, rank, 3, {3, 2, 1, 0});
    });
}

TEST(InPlace, SharesNoBucketWithOthers) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        std::vector<float> own(4), delayed(2);
        BlockModel model(group, {2, 2}, false);
        model.context.add_param<float>("copied", {4}, nullptr, own.data());
        model.context.add_param<float>("view", {4}, nullptr);
        model.context.commit();
        EXPECT_THAT(model.buckets(), ElementsAre(1, 1));
        EXPECT_EQ(ddp_context_param_bucket(model.context.get(), 2), 0);
        for (int p : {3, 2}) {
            if (p == 2)
                own.assign(4, static_cast<float>(rank));
            else
                std::fill_n(model.context.grad_view<float>(3), 4, static_cast<float>(rank));
            model.context.grad_ready(p);
        }
        for (int p : {1, 0}) {
            model.fill(p, static_cast<float>(rank));
            model.context.grad_ready(p);
        }
        model.context.finalize();
        EXPECT_EQ(own[3], 0.5f);
        EXPECT_EQ(model.context.grad_view<float>(3)[3], 0.5f);
        EXPECT_TRUE(model.holds(0, 0.5f));
    });
}

TEST(InPlace, WhatNoRankUsesStaysAsItIs) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {3, 3, 3}, false, with_cap(1 << 20, DDP_CONTEXT_FIND_UNUSED));
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            for (int p : {0, 1, 2}) model.fill(p, static_cast<float>(10 * (rank + 1)));
            model.context.grad_ready(rank == 0 ? 2 : 1);
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, static_cast<float>(10 * (rank + 1))));
            EXPECT_EQ(model.at(1)[0], 10);  // 20 of rank 1, zero of rank 0
            EXPECT_EQ(model.at(2)[0], 5);
        }
    });
}

// A hook reads and writes the block itself.
TEST(InPlace, HooksSeeTheBlock) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {3, 70, 1}, false, with_cap(1 << 20));
        model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
            EXPECT_EQ(ddp_bucket_buffer(bucket), model.at(0));
            EXPECT_EQ(ddp_bucket_count(bucket), 74u);
            ddp_tensor gradient{};
            gradient.struct_size = sizeof gradient;
            call(ddp_bucket_gradient, bucket, 2, &gradient);
            EXPECT_EQ(gradient.data, model.at(2));
            ddp_work* work = nullptr;
            call(ddp_allreduce, g, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                 DDP_F32, DDP_AVG, &work);
            return ddp::Work(work);
        });
        model.context.commit();
        train(model, rank, 2, {2, 1, 0});
    });
}

// Each built-in hook with one parameter in each bucket, so that both have the same buckets.
TEST(InPlace, BuiltInHooksMakeTheSameBitsAsOfViews) {
    const std::vector<std::int64_t> sizes = {64, 33, 1, 500};
    for (const char* name : {"fp16", "bf16", "powersgd", "quantize", "quantize_per_tensor",
                             "onebit", "topk", "chunks"}) {
        on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
            BlockModel in_place(group, sizes, false, with_cap(1));
            Model view(group, sizes, true, with_cap(1));
            for (ddp::Context* context : {&in_place.context, &view.context}) {
                context->use_hook(name);
                context->commit();
            }
            for (int step = 0; step < 4; ++step) {
                for (int p : {3, 2, 1, 0}) {
                    in_place.fill(p, 0.1f * static_cast<float>(rank + step) + 0.3f);
                    std::memcpy(view.grad(p), in_place.at(p), 4 * in_place.size(p));
                    in_place.context.grad_ready(p);
                }
                in_place.context.finalize();
                for (int p : {3, 2, 1, 0}) view.context.grad_ready(p);
                view.context.finalize();
                for (int p : {3, 2, 1, 0})
                    EXPECT_EQ(std::memcmp(view.grad(p), in_place.at(p), 4 * in_place.size(p)), 0)
                        << name << ", p" << p << ", step " << step;
            }
        });
    }
}

TEST(InPlace, APlanIsSavedAndAdopted) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {10, 10, 10}, false, with_cap(80));
        call(ddp_plan_adopt, model.context.get(),
             R"({"libddp_plan": 1, "buckets": [["p0"], ["p1", "p2"]]})");
        model.context.commit();
        EXPECT_THAT(model.buckets(), ElementsAre(0, 1, 1));
        train(model, rank, 2, {2, 1, 0});
        const auto adopt = [&](const char* plan) {
            return calling(ddp_plan_adopt, model.context.get(), plan);
        };
        expect_refused({
            {"a hole",
             kInvalid,
             {"bucket 1 of the plan holds 'p0' and 'p2'"},
             adopt(R"({"libddp_plan": 1, "buckets": [["p1"], ["p0", "p2"]]})")},
            {"an order",
             kInvalid,
             {"'p2' and 'p1'"},
             adopt(R"({"libddp_plan": 1, "buckets": [["p2", "p1", "p0"]]})")},
        });
    });
}

TEST(InPlace, CheckingCopies) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BlockModel model(group, {10, 3}, false, with_cap(1 << 20, DDP_CONTEXT_CHECK));
        model.context.commit();
        EXPECT_EQ(model.context.grad_view<float>(0), model.at(0));  // a program may write there
        train(model, rank, 2, {1, 0});
        EXPECT_GT(copied_bytes(model.context), 0u);
    });
}

TEST(InPlace, MovesToAnotherGroup) {
    for (const char* backend : {"threads", "shm"})
        on_ranks({3, backend}, [](int rank, ddp_group* group) {
            BlockModel model(group, {1000, 70, 3}, true);
            model.context.commit();
            train(model, rank, 3, {2, 1, 0}, 1);
            ddp_group* smaller = nullptr;
            call(ddp_group_split, group, rank == 2 ? 1 : 0, rank, &smaller);
            call(ddp_context_set_group, model.context.get(), smaller);
            ddp_group_free(smaller);
            if (rank == 2) {
                train(model, 0, 1, {2, 1, 0}, 2);
            } else {
                train(model, rank, 2, {2, 1, 0}, 2);
            }
        });
}

// Waits until all ranks, which are threads, have come so far. No collective, which ends on one rank
// before it ends on another.
void meet(std::atomic<int>& arrived, int world) {
    ++arrived;
    for (int look = 0; look < 10'000 && arrived < world; ++look)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Memory into which the old group may still write does not come along, and the other ranks are told
// at once.
TEST(InPlace, DoesNotLeaveAReductionThatHasNotEnded) {
    std::atomic<int> arrived = 0;
    on_ranks({2, "threads"}, [&arrived](int rank, ddp_group* group) {
        ddp_group* next = nullptr;
        call(ddp_group_split, group, 0, rank, &next);
        {
            BlockModel model(group, {100}, false);
            ddp_work* never = nullptr;
            call(ddp_work_create, 60'000, &never);
            model.context.set_comm_hook([&](ddp_group*, ddp_bucket*) {
                const auto nothing =
                    +[](void*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
                ddp_work* given = nullptr;
                call(ddp_work_then, never, nothing, nullptr, nullptr, DDP_WORK_ANY_THREAD, &given);
                return ddp::Work(given);
            });
            model.context.commit();
            if (rank == 0) model.context.grad_ready(0);
            meet(arrived, 2);
            ddp_group_abort(group, "test", nullptr);
            ddp_error* error = nullptr;
            EXPECT_EQ(ddp_context_set_group(model.context.get(), next, &error), DDP_ERROR_ABORTED);
            const Facts facts = take_facts(error);
            EXPECT_EQ(facts, (Facts{DDP_ERROR_ABORTED, 0}));
            EXPECT_THAT(facts.message, HasSubstr("has not ended"));
            ddp_work_free(never);
        }
        ddp_group_free(next);
    });
}

// A rank that has stopped may go on later, and reach memory of ddp_mem_alloc. Other memory it
// cannot reach.
TEST(InPlace, DoesNotLeaveSharedMemoryToABrokenGroup) {
    for (const bool shared : {true, false}) {
        std::atomic<int> arrived = 0;
        on_ranks({2, "shm"}, [shared, &arrived](int rank, ddp_group* group) {
            ddp_group* next = nullptr;
            call(ddp_group_split, group, 0, rank, &next);
            {
                BlockModel model(group, {100'000}, shared);
                model.context.commit();
                meet(arrived, 2);
                ddp_group_abort(group, "test", nullptr);
                ddp_error* error = nullptr;
                const ddp_status status = ddp_context_set_group(model.context.get(), next, &error);
                EXPECT_EQ(status, shared ? DDP_ERROR_ABORTED : DDP_OK);
                if (shared) {
                    const Facts facts = take_facts(error);
                    EXPECT_EQ(facts, (Facts{DDP_ERROR_ABORTED, facts.rank, 0}));
                    EXPECT_GE(facts.rank, 0) << facts;
                    EXPECT_THAT(facts.message, HasSubstr("lies in memory of ddp_mem_alloc"));
                } else {
                    train(model, rank, 2, {0});
                }
            }
            ddp_group_free(next);
        });
    }
}

TEST(InPlace, OnOneRankOnlyIsADifferentModel) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        float gradient[4] = {};
        context.add_param<float>("w", {4}, nullptr, gradient,
                                 rank == 1 ? std::uint32_t{DDP_PARAM_IN_PLACE} : 0);
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_commit(context.get(), &error), DDP_ERROR_MISMATCH);
        EXPECT_EQ(take_facts(error), (Facts{DDP_ERROR_MISMATCH, 1, 0}));
    });
}

TEST(Slices, AreParametersOfTheirOwn) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        float data[24] = {}, grads[24] = {};
        ddp::Context context(borrowed);
        context.add_param<float>("before", {1}, nullptr);
        EXPECT_EQ(context.add_slices<float>("w", {4, 2, 3}, data, grads, DDP_PARAM_IN_PLACE), 1);
        EXPECT_EQ(context.stats().param_count, 5);
        for (int k = 0; k < 24; ++k) data[k] = static_cast<float>(rank == 0 ? k : -1);
        context.commit();
        for (int k = 0; k < 24; ++k) EXPECT_EQ(data[k], static_cast<float>(k));
        for (int layer = 3; layer >= 0; --layer) {
            EXPECT_EQ(context.grad_view<float>(1 + layer), grads + 6 * layer);
            for (int k = 0; k < 6; ++k) grads[6 * layer + k] = static_cast<float>(rank + layer);
            context.grad_ready(1 + layer);
        }
        context.grad_ready(0);
        context.finalize();
        for (int k = 0; k < 24; ++k) EXPECT_EQ(grads[k], 0.5f + static_cast<float>(k / 6));
    });
}

class InPlaceErrors : public LoneContext {
protected:
    auto registering(std::uint32_t flags, float* grad) {
        return [=, this](ddp_error** e) {
            auto d = desc("p", grad);
            d.flags = flags;
            return ddp_register_param(context, &d, &param, e);
        };
    }
    auto slicing(std::int32_t ndim, std::int64_t n, std::int64_t m = 1) {
        return [=, this](ddp_error** e) {
            const std::int64_t extents[] = {n, m};
            auto d = desc("w", memory);
            d.shape = extents;
            d.ndim = ndim;
            return ddp_register_slices(context, &d, &param, e);
        };
    }

    Untouched<ddp_param> param;
    float memory[16] = {};
};

TEST_F(InPlaceErrors, NameWhatIsWrong) {
    add("w[2]");
    const auto d = desc("w");
    expect_refused({
        null_argument("ddp_register_slices", "context",
                      calling(ddp_register_slices, nullptr, &d, &param)),
        null_argument("ddp_register_slices", "desc",
                      calling(ddp_register_slices, context, nullptr, &param)),
        null_argument("ddp_register_slices", "first",
                      calling(ddp_register_slices, context, &d, nullptr)),
        {"without grad",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'p'", "grad is NULL"},
         registering(DDP_PARAM_IN_PLACE, nullptr)},
        {"sparse",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'p'", "DDP_PARAM_SPARSE"},
         registering(DDP_PARAM_IN_PLACE | DDP_PARAM_SPARSE, nullptr)},
        {"factored",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'p'", "DDP_PARAM_FACTORED"},
         registering(DDP_PARAM_IN_PLACE | DDP_PARAM_FACTORED, memory)},
        {"a scalar", DDP_ERROR_INVALID_ARGUMENT, {"'w'", "ndim is 0"}, slicing(0, 1)},
        {"no slices", DDP_ERROR_INVALID_ARGUMENT, {"'w'", "shape[0] is 0"}, slicing(1, 0)},
        {"too many slices",
         DDP_ERROR_INVALID_ARGUMENT,
         {"shape[0] is 1099511627776"},
         slicing(2, std::int64_t{1} << 40)},
        {"a negative extent",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'w[0]'", "shape[0] is -3"},
         slicing(2, 2, -3)},
        {"too large",
         DDP_ERROR_INVALID_ARGUMENT,
         {"too large"},
         slicing(2, 4, std::int64_t{1} << 60)},
        {"a name that is taken", DDP_ERROR_ALREADY_EXISTS, {"'w[2]'"}, slicing(2, 4, 4)},
    });
    EXPECT_EQ(param_count(), 1);  // none of the slices before it
    commit({"a"});
    expect_refused(
        {{"after commit", DDP_ERROR_INVALID_STATE, {"ddp_register_slices"}, slicing(2, 4, 4)}});
    expect_good_step({0, 1});
}

}  // namespace in_place_test
