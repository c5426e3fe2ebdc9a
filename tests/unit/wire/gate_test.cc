// Who gets through the gate while strangers knock.
#include "wire/gate.h"

#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "support.h"
#include "util/deadline.h"

namespace libddp::wire::testing {
namespace {

class GateTest : public ::testing::Test {
protected:
    GateTest() {
        Descriptor listener = listen_on("127.0.0.1", 0);
        address = local_address(listener.get());
        gate = std::make_unique<Gate>(std::move(listener), "a test", knows("me", key_of("s3cret")), Protection::kTls,
                                      [this](Gate::Guest guest) { guests.push_back(std::move(guest)); });
    }
    Descriptor connect() const {
        Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        ::connect(fd.get(), address.get(), address.size);
        return fd;
    }
    End knock() const { return End{Handshake::client(connect(), "me", key_of("s3cret"), Protection::kTls)}; }
    // Until the client is done or refused.
    void finish(End& client) {
        for (auto deadline = Deadline::after_ms(with_slack(10'000)); !client.over() && !deadline.expired();) {
            client.step();
            gate->advance();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    SocketAddress address;
    std::unique_ptr<Gate> gate;
    std::vector<Gate::Guest> guests;
};

TEST_F(GateTest, AGuestHasItsIdentityAndAddress) {
    End client = knock();
    finish(client);
    ASSERT_TRUE(client.done) << client.error.message;
    ASSERT_EQ(guests.size(), 1U);
    EXPECT_EQ(guests[0].identity, "me");
    EXPECT_EQ(guests[0].address.rfind("127.0.0.1:", 0), 0U);
    EXPECT_FALSE(gate->pending());
}

TEST_F(GateTest, SilentConnectionsDoNotDisplaceAHandshake) {
    End client = knock();
    client.step();
    gate->advance();
    std::vector<Descriptor> silent;
    for (int i = 0; i < 400; ++i) {
        silent.push_back(connect());
        gate->advance();
    }
    finish(client);
    EXPECT_TRUE(client.done) << client.error.message;
}

// As when a large job begins.
// More than may be inside at once. A sanitizer is too slow for the second that a handshake may take while others wait.
#ifdef DDP_SANITIZED
constexpr int kCrowd = 100;
#else
constexpr int kCrowd = 400;
#endif

TEST_F(GateTest, ACrowdIsAdmittedWithoutASecondTry) {
    std::vector<End> clients;
    for (int i = 0; i < kCrowd; ++i) {
        clients.push_back(knock());
        clients.back().step();
    }
    bool all = false;
    for (auto deadline = Deadline::after_ms(with_slack(20'000)); !all && !deadline.expired();) {
        gate->advance();
        all = true;
        for (End& client : clients) {
            client.step();
            all &= client.over();
        }
    }
    for (End& client : clients) ASSERT_TRUE(client.done) << client.error.message;
    // The gate has not yet read the last bytes of some.
    for (int i = 0; i < 1000 && guests.size() < clients.size(); ++i) gate->advance();
    EXPECT_EQ(guests.size(), clients.size());
}

// They look like handshakes of those who know the key, and never end.
TEST_F(GateTest, RecordingsHoldOthersBackForASecondAtMost) {
    auto [mine, other] = connected();
    End recorded{Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kTls)};
    recorded.step();
    const std::string hello = read_all(other.get());
    std::vector<Descriptor> flood;
    for (int i = 0; i < 200; ++i) {
        flood.push_back(connect());
        write_all(flood.back().get(), hello);
    }
    gate->advance();
    gate->advance();
    End client = knock();
    auto start = std::chrono::steady_clock::now();
    finish(client);
    EXPECT_TRUE(client.done) << client.error.message;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(with_slack(4000)));
}

}  // namespace
}  // namespace libddp::wire::testing
