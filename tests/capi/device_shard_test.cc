// DDP_CONTEXT_SHARD with parameters on devices, played by fake ones: means of the own pieces, and
// values that come from their owners.
#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/ranks.h"
#include "support/stream_backend.h"

namespace device_shard_test {

// Several buckets, one of them longer than a chunk of staging memory.
const std::vector<std::int64_t> kSizes{5, 700'000, 3, 1, 64, 200};

ddp_context_options sharded() {
    auto options = ddp::Context::defaults();
    options.flags = DDP_CONTEXT_SHARD;
    options.bucket_cap_bytes = 256;
    return options;
}

struct Case {
    int world;
    const char* backend;
    bool view;
    std::vector<int> devices;
    unsigned round_robin = 0;
};

class DeviceShardTest : public DeviceTest, public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(All, DeviceShardTest,
                         testing::ValuesIn(fewer_if_sanitized<Case>(
                             {Case{1, "streams", true, {0}}, Case{2, "streams", false, {0}},
                              Case{3, "streams", true, {0, -1}},
                              Case{2, "streams", true, {0, 1}, 2}, Case{3, "threads", true, {0}},
                              Case{2, "threads-plain", false, {0, 1}}, Case{3, "tcp", true, {0, 1}},
                              Case{3, "shm", true, {0}}, Case{2, "shm", false, {0, -1}}})),
                         [](const auto& test) {
                             const Case& c = test.param;
                             std::string name =
                                 c.backend + std::to_string(c.world) + (c.view ? "view" : "copy");
                             for (int d : c.devices)
                                 name += d < 0 ? std::string("c") : std::to_string(d);
                             if (c.round_robin) name += "turns";
                             std::erase(name, '-');
                             return name;
                         });

TEST_P(DeviceShardTest, OwnersUpdateAndOthersGetTheirValues) {
    const int world = GetParam().world;
    RankOptions options(world, GetParam().backend);
    options.round_robin = GetParam().round_robin;
    std::vector<std::vector<std::vector<float>>> values(static_cast<std::size_t>(world));
    on_ranks(options, [&](int rank, ddp_group* group) {
        DeviceModel model(group, kSizes, GetParam().view, GetParam().devices, sharded());
        for (int p = 0; p < model.count(); ++p) model.set_value(p, 0);
        model.context.set_owner(0, DDP_OWNER_WHOLE);
        model.context.set_owner(4, DDP_OWNER_REPLICATED);
        model.context.commit();
        for (int d = 0; d < 2; ++d)
            for (int p = 0; p < model.count(); ++p)
                if (model.device(p) == d)
                    model.context.set_stream({DDP_DEVICE_CUDA, d}, model.stream(p));
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value_on(p, model.stream(p));
                model.give(p, static_cast<float>(step + 10 * rank));
            }
            model.finalize();
            for (const ddp_piece& piece : model.context.pieces()) {
                const auto gradient = model.read(piece.param);
                for (std::int64_t k = piece.first; k < piece.first + piece.count; ++k)
                    ASSERT_FLOAT_EQ(
                        gradient[static_cast<std::size_t>(k)],
                        static_cast<float>(step + k) + 10 * static_cast<float>(world - 1) / 2);
            }
            // All of it: what is not this rank's own comes from others.
            for (int p = 0; p < model.count(); ++p)
                model.set_value(p, static_cast<float>(p == 4 ? step : 1000 * rank + step));
            model.context.publish();
            for (int p = 0; p < model.count(); ++p) {
                step == 1 ? model.context.wait_value(p)
                          : model.context.wait_value_on(p, model.stream(p));
                if (!GetParam().view) continue;
                for (const float g : model.read(p)) ASSERT_EQ(g, 0) << p;
            }
            auto& mine = values[static_cast<std::size_t>(rank)];
            mine.clear();
            for (int p = 0; p < model.count(); ++p) mine.push_back(model.value(p));
            for (const ddp_piece& piece : model.context.pieces())
                for (std::int64_t k = piece.first; k < piece.first + piece.count; ++k)
                    ASSERT_EQ(
                        mine[static_cast<std::size_t>(piece.param)][static_cast<std::size_t>(k)],
                        static_cast<float>((piece.replicated ? 0 : 1000 * rank) + step + k));
            model.borrowed.barrier();
            EXPECT_EQ(mine, values[0]) << "rank " << rank << ", step " << step;
            model.borrowed.barrier();
        }
    });
}

TEST_F(DeviceTest, ShardsAreNotUpdatedInTheStep) {
    on_ranks(RankOptions(2, "streams"), [](int, ddp_group* group) {
        DeviceModel model(group, kSizes, true, {0}, sharded());
        model.context.commit();
        EXPECT_THROW(model.context.set_update([](const ddp_piece* const*, std::size_t) {}),
                     ddp::Error);
    });
}

}  // namespace device_shard_test
