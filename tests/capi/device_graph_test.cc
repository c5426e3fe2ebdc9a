// Steps in graphs, on several threads and with several ranks, where sanitizers see them. The numbers
// of all kinds of steps: gpu/graph_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_graph_test {

constexpr int kParams = 2;

class DeviceGraphTest : public DeviceTest {
protected:
    // A group that is freed frees what graphs had kept.
    void TearDown() override {
        fake::settle();
        on_ranks({1, "threads"}, [](int, ddp_group*) {});
    }

    // A model whose captured step takes gradients that say `input`, `input` + 1, ... when it runs.
    struct Model : DeviceModel {
        Model(int rank, ddp_group* group, bool view)
            : DeviceModel(group, {64, 300}, view, {rank}, two_buckets()) {}

        void give_input(int p) {
            fake::launch(device(p), stream(p),
                         [gradient = grad(p), count = size(p), from = &inputs[index(p)]] {
                             float* const at = fake::at<float>(gradient);
                             for (std::size_t k = 0; k < count; ++k)
                                 at[k] = *from + static_cast<float>(k);
                         });
            context.grad_ready_on(p, stream(p));
        }
        std::shared_ptr<fake::Capture> capture_step() {
            fake::begin_capture(stream(0));
            context.step_begin();
            for (int p = kParams; p-- > 0;) give_input(p);
            context.finalize_on(stream(0));
            return fake::end_capture(stream(0));
        }
        void warm_up() {
            for (int number = 0; number < 3; ++number) {
                context.step_begin();
                for (int p = kParams; p-- > 0;) give(p, 1);
                context.finalize_on(stream(0));
            }
            fake::wait(device(0), stream(0));
        }
        static std::size_t index(int p) { return static_cast<std::size_t>(p); }

        std::array<std::atomic<float>, kParams> inputs{};
    };
    static ddp_context_options two_buckets() {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 256;
        return options;
    }
};

TEST_F(DeviceGraphTest, EachLaunchReducesWhatIsThere) {
    for (const bool view : {true, false})
        on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
            Model model(rank, group, view);
            model.context.commit();
            model.warm_up();
            const auto graph = model.capture_step();
            ASSERT_NE(graph, nullptr);
            for (int number = 0; number < 10; ++number) {
                for (int p = 0; p < kParams; ++p)
                    model.inputs[Model::index(p)] = static_cast<float>(10 * number + 4 * rank + p);
                fake::launch(graph, model.stream(0));
                for (int p = 0; p < kParams; ++p)
                    EXPECT_TRUE(model.holds(p, 10 * number + 2 + p)) << number;
            }
            for (int p = kParams; p-- > 0;) model.give(p, static_cast<float>(rank));
            model.context.finalize_on(model.stream(0));
            EXPECT_TRUE(model.holds(1, 0.5));
        });
}

TEST_F(DeviceGraphTest, AFrozenParameterHasNoPartInIt) {
    on_ranks({2, "streams"}, [](int rank, ddp_group* group) {
        Model model(rank, group, true);
        model.context.commit();
        const ddp_param frozen = 0;
        ddp::check(ddp_set_frozen(model.context.get(), &frozen, 1, 1, nullptr), nullptr);
        const auto step = [&](auto give) {
            model.context.step_begin();
            give(1);
            model.context.finalize_on(model.stream(0));
        };
        for (int number = 0; number < 3; ++number) step([&](int p) { model.give(p, 1); });
        fake::begin_capture(model.stream(0));
        step([&](int p) { model.give_input(p); });
        const auto graph = fake::end_capture(model.stream(0));
        model.inputs[1] = static_cast<float>(4 * rank);
        fake::launch(graph, model.stream(0));
        EXPECT_TRUE(model.holds(1, 2));
    });
}

TEST_F(DeviceGraphTest, ACaptureThatIsGivenUpLeavesNothing) {
    on_ranks({2, "streams"}, [](int rank, ddp_group* group) {
        Model model(rank, group, true);
        model.context.commit();
        model.warm_up();
        fake::begin_capture(model.stream(0));
        model.context.step_begin();
        fake::end_capture(model.stream(0));
        model.warm_up();
        const auto graph = model.capture_step();
        ASSERT_NE(graph, nullptr);
        for (int p = 0; p < kParams; ++p) model.inputs[Model::index(p)] = static_cast<float>(rank);
        fake::launch(graph, model.stream(0));
        EXPECT_TRUE(model.holds(0, 0.5));
    });
}

// Other calls of a step name its streams as well, and what the step before is part of has ended.
TEST_F(DeviceGraphTest, CallsOutsideOfTheCaptureAreRefused) {
    on_ranks({1, "threads"}, [](int rank, ddp_group* group) {
        Model model(rank, group, true);
        ddp_context* const context = model.context.get();
        model.context.commit();
        model.warm_up();
        ddp::check(ddp_set_stream(context, DDP_DEVICE_CUDA, 0, nullptr, nullptr), nullptr);
        void* const stream = model.stream(0);
        void* const other = fake::make_stream(0);
        void* const memory = fake::allocate(0, 64 * sizeof(float));
        const auto status = [](auto call) { return facts_of([&] { call(); }).status; };
        fake::begin_capture(stream);
        for (int p = kParams; p-- > 0;) model.give_input(p);
        EXPECT_EQ(status([&] { model.context.finalize_async(); }), DDP_ERROR_INVALID_STATE);
        model.context.finalize_on(stream);
        EXPECT_EQ(status([&] { model.context.grad_ready_on(1, other); }), DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(status([&] { model.context.get_on(0, static_cast<float*>(memory), other); }),
                  DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(status([&] { model.context.step_begin(); }), DDP_ERROR_INVALID_STATE);
        const auto graph = fake::end_capture(stream);
        ASSERT_NE(graph, nullptr);
        model.warm_up();
        fake::wait(0, stream);
        fake::free_stream(other);
        fake::release(memory);
    });
}

TEST_F(DeviceGraphTest, AFunctionOfTheProgramIsRefusedAtTheFirstGradient) {
    on_ranks({1, "threads"}, [](int rank, ddp_group* group) {
        Model model(rank, group, true);
        model.context.commit();
        model.warm_up();
        const auto function = [](void*, ddp_param, std::int32_t, ddp_error**) -> ddp_status {
            return DDP_OK;
        };
        ddp::check(
            ddp_set_reduced_callback(model.context.get(), function, nullptr, nullptr, nullptr),
            nullptr);
        fake::begin_capture(model.stream(0));
        const Facts facts = facts_of([&] { model.context.grad_ready_on(1, model.stream(0)); });
        fake::end_capture(model.stream(0));
        EXPECT_EQ(facts.status, DDP_ERROR_UNSUPPORTED) << facts;
        model.warm_up();
    });
}

TEST_F(DeviceGraphTest, EveryRankCapturesTheStep) {
    on_ranks({2, "streams"}, [](int rank, ddp_group* group) {
        Model model(rank, group, true);
        model.context.commit();
        model.warm_up();
        Facts facts = facts_of([&] {
            if (rank == 0) {
                model.capture_step();
            } else {
                for (int p = kParams; p-- > 0;) model.give(p, 1);
                model.context.finalize_on(model.stream(0));
                ddp::check(ddp_barrier(group, nullptr, nullptr), nullptr);
            }
        });
        if (rank == 0) fake::end_capture(model.stream(0));
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        if (rank == 0) {
            EXPECT_EQ(facts.step, 3) << facts;
        }
    });
}

TEST_F(DeviceGraphTest, LaunchesAfterABreakLeaveNoNumbers) {
    std::promise<void> launched;
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        Model model(rank, group, rank == 0);
        model.context.commit();
        model.warm_up();
        const auto graph = model.capture_step();
        fake::launch(graph, model.stream(0));
        fake::wait(model.device(0), model.stream(0));
        if (rank == 1) {
            launched.get_future().wait();
            EXPECT_EQ(ddp_group_abort(group, "gone", nullptr), DDP_OK);
            return;
        }
        launched.set_value();
        EXPECT_NE(ddp_barrier(group, nullptr, nullptr), DDP_OK);  // this rank knows now
        for (int launch = 0; launch < 2; ++launch) {
            fake::launch(graph, model.stream(0));
            for (int p = 0; p < kParams; ++p)
                EXPECT_THAT(model.read(p), testing::Each(testing::IsNan())) << "launch " << launch;
        }
    });
}

}  // namespace device_graph_test
