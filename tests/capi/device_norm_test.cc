// norm.h with parameters on devices, played by fake ones: norms that have the bits of the CPU, and
// clipping by them in the order of streams.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_norm_test {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
    int world;
    const char* backend;
    bool view;
    std::vector<int> devices;
    const char* hook = "";
    unsigned round_robin = 0;

    // Several buckets, one of them longer than a chunk of staging memory, or what f16 counts to.
    std::vector<std::int64_t> sizes() const {
        return {5, std::string(hook) == "fp16" ? 60'000 : 700'000, 3, 1, 64, 2000};
    }
};

class DeviceNormTest : public DeviceTest, public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, DeviceNormTest,
    testing::ValuesIn(fewer_if_sanitized<Case>(
        {Case{1, "streams", true, {0}}, Case{2, "streams", false, {0}},
         Case{3, "streams", true, {0, -1}}, Case{2, "streams", true, {0, 1}, "", 2},
         Case{2, "streams", true, {0}, "fp16"}, Case{2, "threads", false, {0, 1, -1}, "bf16"},
         Case{3, "tcp", true, {0, 1}}, Case{2, "shm", false, {0, -1}}})),
    [](const auto& test) {
        const Case& c = test.param;
        std::string name = c.backend + std::to_string(c.world) + (c.view ? "view" : "copy");
        for (int d : c.devices) name += d < 0 ? std::string("c") : std::to_string(d);
        if (c.round_robin) name += "turns";
        return name + c.hook;
    });

ddp_context_options with(std::uint32_t flags) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.bucket_cap_bytes = 256;
    return options;
}

double norm_of(const std::vector<std::vector<float>>& gradients, double p) {
    long double sum = 0, most = 0;
    for (const auto& gradient : gradients)
        for (const float x : gradient) {
            const long double size = std::abs(static_cast<long double>(x));
            sum += p == 2 ? size * size : size;
            most = std::max(most, size);
        }
    return static_cast<double>(p == 2 ? std::sqrt(sum) : p == 1 ? sum : most);
}

constexpr double kKinds[] = {1, 2, kInfinity};

// Norms of three steps: of all, and of two parameters. The last one is clipped.
std::vector<double> train(const Case& c, const std::vector<int>& devices, std::uint32_t flags) {
    std::mutex mutex;
    std::vector<double> said;
    RankOptions options(c.world, c.backend);
    options.round_robin = c.round_robin;
    options.flags = DDP_GROUP_DETERMINISTIC;
    on_ranks(options, [&](int rank, ddp_group* group) {
        DeviceModel model(group, c.sizes(), c.view, devices, with(flags));
        for (const double p : kKinds) model.context.track_grad_norm(p);
        for (const double p : kKinds) model.context.track_grad_norm(p, {5, 2});
        model.context.commit();
        if (*c.hook) model.context.use_hook(c.hook);
        std::vector<double> norms;
        const auto note = [&] {
            for (int norm = 0; norm < 6; ++norm) norms.push_back(model.context.grad_norm(norm));
        };
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value_on(p, model.stream(p));
                model.give(p, static_cast<float>(step - 300 - 10 * rank));
            }
            step == 1 ? model.context.finalize() : model.finalize();
            if (step < 2) note();
            if (step < 2 && (flags & DDP_CONTEXT_SHARD)) model.context.publish();
        }
        std::vector<std::vector<float>> means;
        for (int p = 0; p < model.count(); ++p) means.push_back(model.read(p));
        note();
        const double value = model.context.clip_grad_norm(1, 10);
        EXPECT_EQ(value, norms[13]);
        const auto factor = static_cast<float>(10 / (value + 1e-6));
        const auto expect_clipped = [&](int param, std::int64_t first, std::int64_t count) {
            const std::vector<float> clipped = model.read(param);
            for (auto k = static_cast<std::size_t>(first);
                 k < static_cast<std::size_t>(first + count); ++k)
                ASSERT_EQ(clipped[k], means[static_cast<std::size_t>(param)][k] * factor)
                    << param << ", " << k;
        };
        if (flags & DDP_CONTEXT_SHARD)
            for (const ddp_piece& piece : model.context.pieces())
                expect_clipped(piece.param, piece.first, piece.count);
        else
            for (int p = 0; p < model.count(); ++p)
                expect_clipped(p, 0, static_cast<std::int64_t>(model.size(p)));
        if (!(flags & DDP_CONTEXT_SHARD))
            for (std::size_t i = 0; i < 3; ++i) {
                const double want = norm_of(means, kKinds[i]),
                             of_two = norm_of({means[5], means[2]}, kKinds[i]);
                EXPECT_NEAR(norms[12 + i], want, want * 1e-13);
                EXPECT_NEAR(norms[15 + i], of_two, of_two * 1e-13);
            }
        const std::lock_guard lock(mutex);
        if (said.empty()) said = norms;
        EXPECT_EQ(said, norms) << "rank " << rank;
    });
    return said;
}

TEST_P(DeviceNormTest, HaveTheBitsOfTheCpu) {
    const std::vector<double> want = train(GetParam(), {-1}, 0);
    EXPECT_EQ(train(GetParam(), GetParam().devices, 0), want);
}

TEST_P(DeviceNormTest, OfShards) {
    const std::vector<double> want = train(GetParam(), {-1}, DDP_CONTEXT_SHARD);
    const std::vector<double> got = train(GetParam(), GetParam().devices, DDP_CONTEXT_SHARD);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], want[i] * 1e-13);
}

// A model with a norm of all, of p 2.
struct Normed : DeviceModel {
    Normed(ddp_group* group, std::uint32_t flags, std::vector<int> devices = {0, -1})
        : DeviceModel(group, {1000, 3, 500}, false, std::move(devices), with(flags)),
          norm(context.track_grad_norm()) {
        context.commit();
    }
    void step(float value, std::vector<int> params = {2, 1, 0}) {
        context.step_begin();
        for (const int p : params) give(p, value);
        finalize();
    }
    const std::int32_t norm;
};

TEST_F(DeviceTest, NormsCountWhatAnyRankUses) {
    on_ranks(RankOptions(2, "streams"), [](int rank, ddp_group* group) {
        Normed model(group, DDP_CONTEXT_FIND_UNUSED);
        for (int step = 0; step < 3; ++step) {
            for (int p = 0; p < 3; ++p) model.fill(p, 7);
            rank == 0 ? model.step(4, {1}) : model.step(6, {2, 1});
            // 500 elements k + 3 (one rank of two), and 5, 6, 7
            double squares = 25 + 36 + 49;
            for (int k = 0; k < 500; ++k) squares += (k + 6) * (k + 6) / 4.0;
            EXPECT_NEAR(model.context.grad_norm(model.norm), std::sqrt(squares), 1e-9);
            model.context.clip_grad_norm(model.norm, 1);
            EXPECT_TRUE(model.holds(0, 7));
        }
    });
}

TEST_F(DeviceTest, NumbersThatAreNotFiniteAreNamedAndNotClipped) {
    on_ranks(RankOptions(2, "streams"), [](int rank, ddp_group* group) {
        Normed model(group, 0);
        model.step(rank == 1 ? INFINITY : 1, {2, 1, 0});
        EXPECT_EQ(model.context.grad_norm(model.norm), kInfinity);
        const ddp::Error error = error_of([&] { model.context.clip_grad_norm(model.norm, 1); });
        EXPECT_EQ(error.status(), DDP_ERROR_NONFINITE);
        EXPECT_THAT(error.what(), HasSubstr("is that for 'p0'"));
        EXPECT_EQ(model.read(0)[0], INFINITY);
        model.step(1);
        EXPECT_TRUE(std::isfinite(model.context.clip_grad_norm(model.norm, 1)));
        EXPECT_THAT(error_of([&] { model.context.clip_grad_norm(model.norm, 1); }).what(),
                    HasSubstr("was clipped in this step already"));
    });
}

// The host asks for the norm while the device has not begun with the step.
TEST_F(DeviceTest, OnlyWhoAsksForTheNormWaits) {
    on_ranks(RankOptions(1, "streams"), [](int, ddp_group* group) {
        Normed model(group, 0, {0});
        model.step(1);
        auto go = std::make_shared<std::atomic<bool>>(false);
        fake::launch(0, model.stream(0), [go] {
            while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
        model.step(2);  // returns
        go->store(true);
        double squares = 0;
        for (const int n : {1000, 3, 500})
            for (int k = 0; k < n; ++k) squares += (k + 2.0) * (k + 2.0);
        EXPECT_NEAR(model.context.grad_norm(model.norm), std::sqrt(squares), 1e-9);
        model.step(3);
        model.step(4);  // nobody asked in between
        EXPECT_GT(model.context.grad_norm(model.norm), std::sqrt(squares));
    });
}

TEST_F(DeviceTest, AStepWithNormsIsNoPartOfAGraph) {
    on_ranks(RankOptions(1, "streams"), [](int, ddp_group* group) {
        Normed model(group, 0, {0});
        for (int step = 0; step < 3; ++step) model.step(1);
        fake::begin_capture(model.stream(0));
        EXPECT_THAT(error_of([&] { model.context.grad_ready_on(0, model.stream(0)); }).what(),
                    HasSubstr("ddp_track_grad_norm"));
        fake::end_capture(model.stream(0));
    });
}

}  // namespace device_norm_test
