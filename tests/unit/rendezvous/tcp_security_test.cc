// Strangers at the tcp store: wrong secrets, clients and servers that are not libddp, and malformed
// frames.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>

#include "rendezvous/protocol.h"
#include "support.h"
#include "wire/sockets.h"

namespace libddp::testing {
namespace {

class TcpSecurity : public ::testing::Test {
protected:
    // The server still serves.
    void TearDown() override {
        server->set("alive", "yes");
        EXPECT_EQ(open(server->describe(), false, "s3cret")->get("alive"), "yes");
    }
    std::unique_ptr<RawClient> authenticated() {
        return std::make_unique<RawClient>(server->port(), "s3cret");
    }
    void expect_closed(const std::string& bytes) {
        auto socket = authenticated();
        socket->send(bytes);
        EXPECT_TRUE(socket->closed_by_peer(kLongMs));
    }

    std::shared_ptr<Store> server = open("tcp://127.0.0.1:0", true, "s3cret");
};

TEST_F(TcpSecurity, AnotherSecretIsDenied) {
    for (const char* secret : {"", "S3cret", "s3cret "}) {
        auto start = std::chrono::steady_clock::now();
        expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_SECRET", server->describe()},
                     [&] { open(server->describe(), false, secret); });
        EXPECT_LT(elapsed_ms(start), with_slack(2000));
    }
    auto unprotected = open("tcp://127.0.0.1:0", true);
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_SECRET"},
                 [&] { open(unprotected->describe(), false, "s3cret"); });
}

TEST_F(TcpSecurity, NothingIsServedBeforeTheProof) {
    Request request;
    request.op = Op::kSet;
    request.keys = {"intruder"};
    request.values = {"x"};
    std::string bytes = encode_request(1, request);

    RawSocket early(server->port());
    early.send(bytes);
    EXPECT_TRUE(early.closed_by_peer(kLongMs));
    for (const char* secret : {"s3cret", "another"}) {
        RawSocket after_hello(server->port());
        after_hello.send(client_hello(secret) + bytes);
        EXPECT_TRUE(after_hello.closed_by_peer(kLongMs));
    }
    EXPECT_FALSE(server->check({"intruder"}));
}

TEST_F(TcpSecurity, ClientsThatAreNotLibddpAreClosed) {
    for (const char* text : {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "x", "ddpS", "\n"}) {
        RawSocket socket(server->port());
        socket.send(text);
        EXPECT_TRUE(socket.closed_by_peer(kLongMs)) << text;
    }
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
        std::string bytes(1 + random() % 200, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        bytes[0] &= '\x0f';  // no record of TLS, of which the rest might come
        RawSocket socket(server->port());
        socket.send(bytes);
        EXPECT_TRUE(socket.closed_by_peer(kLongMs));
    }
}

TEST_F(TcpSecurity, SilentAndSlowClientsAreClosed) {
    RawSocket silent(server->port());
    RawSocket slow(server->port());
    const std::string hello = client_hello("s3cret");
    auto start = std::chrono::steady_clock::now();
    bool closed = false;
    for (std::size_t i = 0; i < hello.size() - 1 && !closed; ++i) {
        slow.send(hello.substr(i, 1));
        closed = slow.closed_by_peer(250);
    }
    EXPECT_TRUE(closed);
    EXPECT_TRUE(silent.closed_by_peer(kLongMs));
    EXPECT_LT(elapsed_ms(start), 9000);
}

TEST_F(TcpSecurity, AnotherProtocolVersionIsAnswered) {
    RawClient newer(server->port(), "s3cret", "store 99");
    EXPECT_EQ(newer.version(), kProtocolVersion);
    EXPECT_TRUE(newer.closed_by_peer(kLongMs));
    for (const char* identity : {"store", "store ", "store x", "store 3x", "store -3", "link 3"})
        EXPECT_EQ(error_of([&] { RawClient(server->port(), "s3cret", identity); }).code,
                  DDP_ERROR_PERMISSION_DENIED);
}

TEST_F(TcpSecurity, RefusedClientsAreNamedOnceInAWhile) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 5; ++i) error_of([&] { open(server->describe(), false, "another"); });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("was refused: the other end has another key"), std::string::npos) << said;
    EXPECT_NE(said.find("store: 127.0.0.1:"), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(TcpSecurity, ARelaySeesNothingAndForgesNothing) {
    Relay forger(server->port(), {.text = "honest value", .forged = "forged value"});
    auto client = open(forger.uri(), false, "s3cret");
    client->set("key", "honest value");
    EXPECT_EQ(server->get("key"), "honest value");
    EXPECT_EQ(client->get("key"), "honest value");
    EXPECT_FALSE(forger.saw());
    client.reset();
}

// tests/support/store_proxy.py ends connections after a number of bytes.
TEST_F(TcpSecurity, TheHandshakeHasAsManyBytesAsTestsCountOn) {
    Relay counter(server->port());
    auto client = open(counter.uri(), false, "s3cret");
    EXPECT_EQ(counter.up(), 329U);
    EXPECT_EQ(counter.down(), 259U);
    client.reset();
}

TEST_F(TcpSecurity, MalformedFramesCloseTheirConnection) {
    std::string huge = std::string(4, '\xff') + std::string(9, '\0');
    expect_closed(huge);
    expect_closed(std::string(13, '\0') + std::string(100, 'x'));

    ByteWriter many_keys;
    many_keys.u32(20);
    many_keys.u8(static_cast<std::uint8_t>(Op::kCheck));
    many_keys.u64(1);
    many_keys.i64(0);
    many_keys.i64(0);
    many_keys.u32(0xffffffff);
    expect_closed(many_keys.take());
}

TEST_F(TcpSecurity, RequestsThatMakeNoSenseAreAnswered) {
    auto socket = authenticated();
    auto ask = [&](Op op, Strings keys, Strings values, std::int64_t timeout) {
        Request request;
        request.op = op;
        request.keys = std::move(keys);
        request.values = std::move(values);
        request.timeout_ms = timeout;
        socket->send(encode_request(5, request));
        auto frame = socket->receive_frame();
        return frame ? decode_reply(*frame).code : ddp_status{DDP_OK};
    };
    EXPECT_EQ(ask(static_cast<Op>(63), {}, {}, 0), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(ask(Op::kReply, {}, {}, 0), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(ask(Op::kSet, {"k"}, {}, 0), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ask(Op::kSet, {std::string(2000, 'k')}, {""}, 0), DDP_ERROR_LIMIT);
    EXPECT_EQ(ask(Op::kGet, {"k"}, {}, -5), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ask(Op::kGet, {"k"}, {}, INT64_MAX), DDP_ERROR_INVALID_ARGUMENT);
}

TEST_F(TcpSecurity, RandomFramesOfAnAuthenticatedClient) {
    std::mt19937 random(11);
    for (int round = 0; round < 60; ++round) {
        auto socket = authenticated();
        std::string bytes(1 + random() % 3000, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        bytes[3] = 0;  // plausible lengths reach further
        bytes[2] = 0;
        socket->send(bytes);
    }
}

TEST_F(TcpSecurity, HalfAFrameAndThenNothing) {
    std::vector<std::unique_ptr<RawClient>> sockets;
    for (int i = 0; i < 8; ++i) {
        sockets.push_back(authenticated());
        // Claims the largest frame; the server must not set memory aside for it.
        ByteWriter header;
        header.u32(static_cast<std::uint32_t>(limits::kFrame));
        header.u8(static_cast<std::uint8_t>(Op::kSet));
        header.u64(1);
        header.raw("half");
        sockets.back()->send(header.take());
    }
    server->set("k", "v");
    EXPECT_EQ(server->get("k"), "v");
}

// A server that takes connections and says `answer` to each.
class FakeServer {
public:
    explicit FakeServer(std::string answer) : answer_(std::move(answer)) {
        thread_ = std::thread([this] {
            for (int fd; (fd = accept(listener_.get(), nullptr, nullptr)) >= 0; open_.push_back(fd))
                (void)!::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        });
    }
    ~FakeServer() {
        shutdown(listener_.get(), SHUT_RDWR);
        thread_.join();
        for (int fd : open_) ::close(fd);
    }
    std::string uri() const { return str("tcp://127.0.0.1:", port_); }

private:
    std::string answer_;
    const Descriptor listener_ = listen_here();
    const int port_ = local_address(listener_.get()).port();
    std::vector<int> open_;
    std::thread thread_;
};

TEST(TcpForeignServer, AnotherProtocolIsUnavailableAtOnce) {
    FakeServer http("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nServer: something\r\n\r\n");
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_UNAVAILABLE, {http.uri(), "not a libddp store"},
                 [&] { open(http.uri()); });
    EXPECT_LT(elapsed_ms(start), with_slack(2000));
}

TEST(TcpForeignServer, SilenceIsBounded) {
    FakeServer silent("");
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_UNAVAILABLE, {silent.uri(), "does not answer like a libddp store"},
                 [&] { open(silent.uri(), false, "", 400); });
    EXPECT_LT(elapsed_ms(start), with_slack(3000));
}

// A server with this secret that sends these bytes through the channel.
class OtherServer {
public:
    OtherServer(const std::string& secret, std::string says) {
        thread_ =
            std::thread([this, key = wire::derive_key(secret, kStoreKey), says = std::move(says)] {
                for (int fd; (fd = accept(listener_.get(), nullptr, nullptr)) >= 0;)
                    serve(Descriptor(fd), key, says);
            });
    }
    ~OtherServer() {
        shutdown(listener_.get(), SHUT_RDWR);
        thread_.join();
    }
    std::string uri() const { return str("tcp://127.0.0.1:", port_); }

private:
    // The socket blocks, and recv() of a channel does not, so this looks again and again.
    static void serve(Descriptor socket, const wire::Key& key, std::string says) {
        try {
            auto handshake = wire::Handshake::server(
                std::move(socket), [&](std::string_view) { return std::optional(key); },
                wire::Protection::kEncrypted);
            while (handshake->advance() != wire::Handshake::Wants::kNothing)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            auto channel = handshake->take_channel();
            iovec piece{says.data(), says.size()};
            channel->send(&piece, 1);
            while (true) {
                channel->receive(&piece, 1);
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        } catch (const Error&) {
        }
    }

    const Descriptor listener_ = listen_here();
    const int port_ = local_address(listener_.get()).port();
    std::thread thread_;
};

TEST(TcpForeignServer, AnotherVersionIsNamed) {
    OtherServer newer("", std::string("\x09\0\0\0", 4));
    expect_error(DDP_ERROR_UNSUPPORTED, {"version 9"}, [&] { open(newer.uri()); });
}

TEST(TcpForeignServer, AServerWithoutTheSecretIsNotBelieved) {
    OtherServer impostor("guessed", encode_version());
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_SECRET"},
                 [&] { open(impostor.uri(), false, "s3cret"); });
}

}  // namespace
}  // namespace libddp::testing
