// The calls that a hierarchical group passes on between the core and the backend of its rails.
#include "backends/hierarchical/rail.h"

#include <gtest/gtest.h>

#include <string>

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

TEST(Rail, DeletesOnlyKeysOfItsOwn) {
    static std::string deleted;
    ddp_backend_host host{};
    host.struct_size = sizeof host;
    host.handle = &deleted;
    host.world_size = 2;
    host.store_delete = [](void* handle, const char* key, ddp_backend_failure*) {
        *static_cast<std::string*>(handle) = key;
        return ddp_status{DDP_OK};
    };
    ddp_backend made{};
    made.create = [](const ddp_backend_host* given, void** transport,
                     ddp_backend_failure* failure) {
        *transport = nullptr;
        return given->store_delete(given->handle, "place", failure);
    };
    made.destroy = [](void*) {};
    const backend::Topology topology({0, 1}, 0);
    const hierarchical::Rail rail(host, &made, topology, 0);
    EXPECT_EQ(deleted, "rail/0/place");
}

}  // namespace
}  // namespace libddp
