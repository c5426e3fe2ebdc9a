// Strangers at the tcp store: wrong secrets, clients and servers that are not libddp, and malformed frames.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "rendezvous/auth.h"
#include "rendezvous/protocol.h"
#include "support.h"

namespace libddp::testing {
namespace {

class TcpSecurity : public ::testing::Test {
protected:
    // The server still serves.
    void TearDown() override {
        server->set("alive", "yes");
        EXPECT_EQ(open(server->describe(), false, "s3cret")->get("alive"), "yes");
    }
    // A raw connection that has passed the handshake.
    std::unique_ptr<RawSocket> authenticated() {
        auto socket = std::make_unique<RawSocket>(server->port());
        std::string nonce = make_nonce();
        socket->send(encode_hello(Role::kClient, nonce));
        Hello hello = decode_hello(Role::kServer, socket->receive(kHelloSize));
        EXPECT_TRUE(hello.known);
        socket->send(make_proof(Role::kClient, "s3cret", nonce, hello.nonce));
        std::string verdict = socket->receive(kVerdictSize);
        EXPECT_TRUE(is_accepted(verdict));
        EXPECT_EQ(verdict.substr(1), make_proof(Role::kServer, "s3cret", nonce, hello.nonce));
        return socket;
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
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_SECRET"}, [&] { open(unprotected->describe(), false, "s3cret"); });
}

TEST_F(TcpSecurity, NothingIsServedBeforeTheProof) {
    Request request;
    request.op = Op::kSet;
    request.keys = {"intruder"};
    request.values = {"x"};
    std::string bytes = encode_request(1, request);

    RawSocket early(server->port());
    early.send(encode_hello(Role::kClient, make_nonce()) + bytes);
    EXPECT_TRUE(early.closed_by_peer(kLongMs));

    RawSocket refused(server->port());
    refused.send(encode_hello(Role::kClient, make_nonce()));
    refused.receive(kHelloSize);
    refused.send(std::string(kProofSize, 'x'));
    EXPECT_EQ(refused.receive(kVerdictSize), refused_verdict());
    refused.send(bytes);
    EXPECT_TRUE(refused.closed_by_peer(kLongMs));
    EXPECT_FALSE(server->check({"intruder"}));
}

TEST_F(TcpSecurity, ReflectedProofsAreRefused) {
    RawSocket socket(server->port());
    std::string nonce = make_nonce();
    socket.send(encode_hello(Role::kClient, nonce));
    Hello hello = decode_hello(Role::kServer, socket.receive(kHelloSize));
    socket.send(make_proof(Role::kServer, "s3cret", nonce, hello.nonce));
    EXPECT_FALSE(is_accepted(socket.receive(kVerdictSize)));
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
        RawSocket socket(server->port());
        socket.send(bytes);
        EXPECT_TRUE(socket.closed_by_peer(kLongMs));
    }
}

TEST_F(TcpSecurity, SilentAndSlowClientsAreClosed) {
    RawSocket silent(server->port());
    RawSocket slow(server->port());
    std::string hello = encode_hello(Role::kClient, make_nonce());
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
    std::string hello = encode_hello(Role::kClient, make_nonce());
    hello[4] = 99;
    RawSocket socket(server->port());
    socket.send(hello);
    EXPECT_EQ(decode_hello(Role::kServer, socket.receive(kHelloSize)).version, kProtocolVersion);
    EXPECT_TRUE(socket.closed_by_peer(kLongMs));
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
        FrameReader reader;
        for (int i = 0; i < 100'000; ++i) {
            std::string byte = socket->receive(1);
            if (byte.empty()) break;
            reader.feed(byte);
            if (auto frame = reader.next()) return decode_reply(*frame).code;
        }
        return ddp_status{DDP_OK};
    };
    EXPECT_EQ(ask(static_cast<Op>(63), {}, {}, 0), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(ask(Op::kReply, {}, {}, 0), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(ask(Op::kSet, {"k"}, {}, 0), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ask(Op::kSet, {std::string(2000, 'k')}, {""}, 0), DDP_ERROR_LIMIT);
    EXPECT_EQ(ask(Op::kGet, {"k"}, {}, -5), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ask(Op::kGet, {"k"}, {}, INT64_MAX), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ask(Op::kBarrier, {"k"}, {}, 0), DDP_ERROR_INVALID_ARGUMENT);
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
    std::vector<std::unique_ptr<RawSocket>> sockets;
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
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(listen(listener_, 8), 0);
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] {
            for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0; open_.push_back(fd))
                (void)!::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        });
    }
    ~FakeServer() {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        ::close(listener_);
        for (int fd : open_) ::close(fd);
    }
    std::string uri() const { return str("tcp://127.0.0.1:", port_); }

private:
    std::string answer_;
    int listener_ = -1;
    int port_ = 0;
    std::vector<int> open_;
    std::thread thread_;
};

TEST(TcpForeignServer, AnotherProtocolIsUnavailableAtOnce) {
    FakeServer http("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nServer: something\r\n\r\n");
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_UNAVAILABLE, {http.uri(), "not a libddp store"}, [&] { open(http.uri()); });
    EXPECT_LT(elapsed_ms(start), with_slack(2000));
}

TEST(TcpForeignServer, SilenceIsBounded) {
    FakeServer silent("");
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_UNAVAILABLE, {silent.uri(), "does not answer like a libddp store"},
                 [&] { open(silent.uri(), false, "", 400); });
    EXPECT_LT(elapsed_ms(start), with_slack(3000));
}

TEST(TcpForeignServer, AnotherVersionIsNamed) {
    std::string hello = encode_hello(Role::kServer, make_nonce());
    hello[4] = 9;
    FakeServer newer(hello);
    expect_error(DDP_ERROR_UNSUPPORTED, {"version 9"}, [&] { open(newer.uri()); });
}

TEST(TcpForeignServer, AServerWithoutTheSecretIsNotBelieved) {
    FakeServer impostor(encode_hello(Role::kServer, make_nonce()) + accepted_verdict(std::string(kProofSize, 'x')));
    expect_error(DDP_ERROR_PERMISSION_DENIED, {"DDP_SECRET"}, [&] { open(impostor.uri(), false, "s3cret"); });
}

}  // namespace
}  // namespace libddp::testing
