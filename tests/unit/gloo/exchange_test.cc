// The missing rank when the wait for one rank ended before the deadline and the wait for another
// did not.
#include "backends/gloo/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/common/adapter.h"
#include "backends/gloo/signals.h"
#include "unit/backend/fake_host.h"

namespace libddp {
namespace {

using namespace testing_backend;
using testing::HasSubstr;

// Connections and an exchange, and nobody who breaks all connections when one is lost.
class Comparing {
public:
    explicit Comparing(const ddp_backend_host& host)
        : mesh_(host, "127.0.0.1", Deadline::after_ms(host.timeout_ms)), exchange_(mesh_) {}
    // ends what Gloo's thread may still do with the exchange's memory
    ~Comparing() { mesh_.poison(); }
    void run(const ddp_collective& c) {
        exchange_.compare("same", 4, Deadline::after_ms(c.timeout_ms));
    }
    void abort() {}
    std::uint32_t capabilities() const { return 0; }

private:
    gloo_tcp::Mesh mesh_;
    gloo_tcp::Exchange exchange_;
};

TEST(Exchange, ARankWhoseConnectionBrokeBeforeTheTimeoutIsMissingToo) {
    constexpr ddp_backend comparing =
        backend::Adapter<Comparing, gloo_tcp::SigpipeGuard>::table("gloo");
    World world(4, "", 0, 20000, &comparing);
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    world[2].destroy();
    world[1].timeout_ms = 300;
    EXPECT_EQ(world[1].barrier(), DDP_ERROR_TIMEOUT) << world[1].failure.message;
    EXPECT_THAT(world[1].failure.message, HasSubstr("rank 2, 3, 0"));
    EXPECT_EQ(world[1].failure.rank, 2);
}

}  // namespace
}  // namespace libddp
