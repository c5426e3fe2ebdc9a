// Which ranks share a host, when a rank takes that from what another wrote.
#include "backends/common/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "util/error.h"

namespace libddp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As rank 1 of 3 reads it.
backend::Topology read(std::string text) {
    ddp_backend_host host{};
    host.struct_size = sizeof host;
    host.handle = &text;
    host.rank = 1;
    host.world_size = 3;
    host.store_set = [](void*, const char*, const void*, std::size_t, ddp_backend_failure*) {
        return ddp_status{DDP_OK};
    };
    host.store_get = [](void* handle, const char*, std::int64_t, void** value, std::size_t* size,
                        ddp_backend_failure*) {
        *size = static_cast<std::string*>(handle)->size();
        *value = strdup(static_cast<std::string*>(handle)->c_str());
        return ddp_status{DDP_OK};
    };
    host.store_value_free = &std::free;
    return backend::find_topology(host, Deadline::after_ms(1000));
}

TEST(Topology, IsWhatRank0Wrote) {
    const auto topology = read("0 1 0 ");
    EXPECT_EQ(topology.hosts(), 2);
    EXPECT_THAT(topology.ranks(0), ElementsAre(0, 2));
    EXPECT_EQ(topology.host(), 1);
}

TEST(Topology, OfAnotherWorldOrNoneIsAnError) {
    for (const char* text :
         {"", "0", "0 0", "0 0 0 0", "0 -1 0", "0 2 1", "1 0 0", "0 0 x", "0 99999999999 0"}) {
        try {
            read(text);
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.info().code, DDP_ERROR_IO) << text;
            EXPECT_THAT(error.info().message, HasSubstr("which host")) << text;
        }
    }
}

}  // namespace
}  // namespace libddp
