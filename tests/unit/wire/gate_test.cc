// Clients that get through the gate while strangers knock.
#include "wire/gate.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
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
        gate = std::make_unique<Gate>(
            std::move(listener), "a test", knows("me", key_of("s3cret")), Protection::kEncrypted,
            [this](Gate::Guest guest) { guests.push_back(std::move(guest)); });
    }
    // from: an address of this host.
    Descriptor connect(const char* from = "127.0.0.1") const {
        Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const SocketAddress source = resolve(from, 0, Deadline::after_ms(0)).front();
        EXPECT_EQ(bind(fd.get(), source.get(), source.size), 0);
        ::connect(fd.get(), address.get(), address.size);
        return fd;
    }
    End knock(const char* from = "127.0.0.1") const {
        return End{
            Handshake::client(connect(from), "me", key_of("s3cret"), Protection::kEncrypted)};
    }
    // The first bytes of a client's handshake.
    static std::string recording() {
        auto [mine, other] = connected();
        End recorded{
            Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kEncrypted)};
        recorded.step();
        return read_all(other.get());
    }
    // Until the client is done or refused.
    void finish(End& client) {
        for (auto deadline = Deadline::after_ms(with_slack(10'000));
             !client.over() && !deadline.expired();) {
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

// An identity is the first thing that a stranger says, and the log quotes it.
TEST_F(GateTest, AnIdentityDoesNotReachTheTerminal) {
    ::testing::internal::CaptureStderr();
    const std::string identity = "\x1b]0;title\x07\nlibddp[1] error: forged";
    End client{Handshake::client(connect(), identity, key_of("guessed"), Protection::kEncrypted)};
    finish(client);
    const std::string seen = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(seen.find("'\\x1b]0;title\\x07\\x0alibddp[1] error: forged'"), seen.npos) << seen;
    EXPECT_EQ(seen.find('\x1b'), seen.npos);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 1) << seen;
}

// As when a large job begins. More than may be inside at once. A sanitizer is too slow for the
// second that a handshake may take while others wait.
#ifdef DDP_SANITIZED
constexpr int kCrowd = 100;
#else
constexpr int kCrowd = 400;
#endif

TEST_F(GateTest, ACrowdIsAdmittedWithoutASecondTry) {
    const auto admits_a_crowd = [&] {
        guests.clear();
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
        for (const End& client : clients)
            if (!client.done) return false;
        // The gate has not yet read the last bytes of some.
        for (int i = 0; i < 1000 && guests.size() < clients.size(); ++i) gate->advance();
        EXPECT_EQ(guests.size(), clients.size());
        return true;
    };
    // Where other programs take the processor for half a second, some are refused.
    bool admitted = false;
    for (int look = 0; look < 5 && !admitted; ++look) admitted = admits_a_crowd();
    EXPECT_TRUE(admitted);
}

// Sent again and again, a hello begins one handshake. The others are closed without an answer, and
// hold nobody back.
TEST_F(GateTest, ARecordingIsUsedOnce) {
    const std::string hello = recording();
    int answered = 0, closed = 0;
    std::vector<Descriptor> open;
    for (int i = 0; i < 1000; ++i) {
        Descriptor again = connect();
        write_all(again.get(), hello);
        gate->advance();
        char byte;
        const ssize_t count = recv(again.get(), &byte, 1, MSG_DONTWAIT);
        answered += count > 0;
        closed += count == 0 || (count < 0 && errno == ECONNRESET);
        if (count > 0) open.push_back(std::move(again));
    }
    EXPECT_EQ(answered, 1);
    EXPECT_EQ(closed, 999);
    // The hello of a client that got through as well: it has used its number.
    End client = knock();
    client.step();
    finish(client);
    EXPECT_TRUE(client.done) << client.error.message;
}

// It has used its number although the connection ends, or goes on with nonsense, before the server
// waits for more.
TEST_F(GateTest, ARecordingThatEndsAtOnceIsUsedOnce) {
    for (const std::string after : {"", "nonsense", "\x17\x03\x03\x00\x01x"}) {
        const std::string hello = recording();
        SeenHellos seen;
        int lookups = 0;
        for (int i = 0; i < 5; ++i) {
            auto [here, there] = connected();
            write_all(there.get(), hello + after);
            shutdown(there.get(), SHUT_WR);
            const auto lookup = [&](std::string_view identity) {
                ++lookups;
                return knows("me", key_of("s3cret"))(identity);
            };
            End server{Handshake::server(std::move(here), lookup, Protection::kEncrypted, &seen)};
            server.step();
            EXPECT_FALSE(server.error.ok());
        }
        EXPECT_EQ(lookups, 1) << after;
    }
}

// Somebody else's key is not in the number, so such a hello pushes none out and is not remembered.
TEST_F(GateTest, OnlyAHelloWithTheKeyIsRemembered) {
    SeenHellos seen;
    for (const char* key : {"another", "s3cret"}) {
        auto [mine, other] = connected();
        End client{Handshake::client(std::move(mine), "me", key_of(key), Protection::kEncrypted)};
        client.step();
        const std::string hello = read_all(other.get());
        for (int i = 0; i < 2; ++i) {
            auto [here, there] = connected();
            write_all(there.get(), hello);
            End server{Handshake::server(std::move(here), knows("me", key_of("s3cret")),
                                         Protection::kEncrypted, &seen)};
            server.step();
            const bool good = key == std::string("s3cret");
            EXPECT_EQ(server.error.code, !good    ? DDP_ERROR_PERMISSION_DENIED
                                         : i == 0 ? DDP_OK
                                                  : DDP_ERROR_UNAVAILABLE)
                << key << " " << i << " " << server.error.message;
            if (good && i == 1) {
                EXPECT_EQ(read_all(there.get()), "") << "a recording got an answer";
            }
        }
    }
}

TEST(SeenHellosTest, AreBounded) {
    SeenHellos seen;
    const auto number = [](std::size_t i) {
        SeenHellos::Random random{};
        std::memcpy(random.data(), &i, sizeof i);
        return random;
    };
    for (std::size_t i = 0; i < SeenHellos::kMost; ++i) seen.add(number(i));
    seen.add(number(5));  // once more
    EXPECT_TRUE(seen.has(number(0)));
    seen.add(number(SeenHellos::kMost));
    EXPECT_FALSE(seen.has(number(0)));
    EXPECT_TRUE(seen.has(number(1)));
    EXPECT_TRUE(seen.has(number(SeenHellos::kMost)));
}

// Many recordings that nobody has used yet, from one network: it has its share, and others come in
// at once.
TEST_F(GateTest, ANetworkOfRecordingsGetsItsShare) {
    std::vector<Descriptor> flood;
    const auto come = [&](int count) {
        for (int i = 0; i < count; ++i) {
            flood.push_back(connect("127.0.0.2"));
            write_all(flood.back().get(), recording());
            gate->advance();
        }
    };
    const auto open = [&] {
        char byte;
        return std::count_if(flood.begin(), flood.end(), [&](const Descriptor& fd) {
            ssize_t count;
            do count = recv(fd.get(), &byte, 1, MSG_DONTWAIT);
            while (count > 0);
            return count < 0 && errno == EAGAIN;
        });
    };
    come(200);
    for (auto end = Deadline::after_ms(with_slack(10'000)); open() > 100 && !end.expired();) {
        gate->advance();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    come(300);
    for (int i = 0; i < 20; ++i) gate->advance();
    EXPECT_LE(open(), static_cast<std::ptrdiff_t>(Strangers::kShare));
    for (int i = 0; i < 5; ++i) {
        come(20);
        End client = knock("127.0.0.3");
        finish(client);
        EXPECT_TRUE(client.done) << client.error.message;
        End neighbour = knock("127.0.0.2");
        finish(neighbour);
        EXPECT_TRUE(neighbour.done) << neighbour.error.message;
    }
}

// They look like handshakes of those who know the key, and never end.
TEST_F(GateTest, RecordingsHoldOthersBackForASecondAtMost) {
    std::vector<Descriptor> flood;
    for (int i = 0; i < 200; ++i) {
        flood.push_back(connect());
        write_all(flood.back().get(), recording());
    }
    gate->advance();
    gate->advance();
    End client = knock();
    auto start = std::chrono::steady_clock::now();
    finish(client);
    EXPECT_TRUE(client.done) << client.error.message;
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::milliseconds(with_slack(4000)));
}

}  // namespace
}  // namespace libddp::wire::testing
