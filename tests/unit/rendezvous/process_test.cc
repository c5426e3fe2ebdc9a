// Processes that die: their wills run, on all kinds of store.
#include "support.h"

namespace libddp::testing {
namespace {

class Processes : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Service> service = make_service(GetParam(), 3);
    std::shared_ptr<Store> store = service->connect();
};
INSTANTIATE_TEST_SUITE_P(Kinds, Processes, ::testing::ValuesIn(store_kinds()),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Processes, TheWillOfAKilledProcessIsRun) {
    Child child({service->uri(), "will"});
    EXPECT_EQ(store->get("child/ready", kLongMs), "yes");
    store->set("will/late", "set before");
    EXPECT_FALSE(store->check({"will/executed"}));
    auto start = std::chrono::steady_clock::now();
    child.kill();
    EXPECT_EQ(store->get("will/executed", kLongMs), "gone");
    // etcd waits for the end of a lease of 3 s, and looks for such every half second.
    EXPECT_LT(elapsed_ms(start), with_slack(std::string(GetParam()) == "etcd" ? 6000 : 1000));
    EXPECT_EQ(store->get("will/late"), "set before");
    EXPECT_FALSE(store->check({"will/removed"}));
}

TEST_P(Processes, AStoppedProcessIsNotDead) {
    Child child({service->uri(), "will"});
    EXPECT_EQ(store->get("child/ready", kLongMs), "yes");
    child.stop_running();
    expect_error(DDP_ERROR_TIMEOUT, {}, [&] { store->get("will/executed", 400); });
}

TEST_P(Processes, SeveralProcessesShareTheStore) {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 4; ++i)
        children.push_back(
            std::make_unique<Child>(std::vector<std::string>{service->uri(), "add"}));
    for (auto& child : children) EXPECT_EQ(child->read_line(), "ready");
    EXPECT_EQ(store->get("children"), "4");
}

// A program may end without having freed its server. The libraries below have ended before the
// server's thread then.
TEST(EndOfAProcess, AServerTurnsClientsAwayOnceTheCryptographyHasEnded) {
    Child child({"tcp://127.0.0.1:0", "exit"});
    const int port = std::stoi(child.read_line());
    ASSERT_EQ(child.read_line(), "late");
    RawSocket client(port);
    client.send(client_hello(""));
    EXPECT_TRUE(client.closed_by_peer(kLongMs));
    EXPECT_EQ(child.end(), 0);
}

}  // namespace
}  // namespace libddp::testing
