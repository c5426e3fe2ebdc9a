// What a hierarchical group passes on between the core and the backend of its rails.
#include "backends/hierarchical/rail.h"

#include <gtest/gtest.h>

namespace libddp {
namespace {

bool asked = false;

TEST(Rail, AsksTheCoreWhetherTheProgramWantsAWaitToEnd) {
    ddp_backend_host host{};
    host.struct_size = sizeof host;
    host.handle = &asked;
    host.world_size = 2;
    host.interrupted = [](void* handle) -> std::int32_t {
        *static_cast<bool*>(handle) = true;
        return 1;
    };
    ddp_backend made{};
    made.create = [](const ddp_backend_host* given, void** transport, ddp_backend_failure*) {
        *transport = nullptr;
        EXPECT_NE(given->handle, &asked);
        EXPECT_EQ(given->interrupted(given->handle), 1);
        return ddp_status{DDP_OK};
    };
    made.destroy = [](void*) {};
    const backend::Topology topology({0, 1}, 0);
    const hierarchical::Rail rail(host, &made, topology, 0);
    EXPECT_TRUE(asked);
}

}  // namespace
}  // namespace libddp
