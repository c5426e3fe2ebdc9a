// The most that strangers and clients can make a store server spend: connections, descriptors,
// memory, time.
#include <netinet/in.h>
#include <sys/resource.h>

#include <future>
#include <thread>

#include "rendezvous/tcp_server.h"
#include "support.h"
#include "support/few_descriptors.h"
#include "wire/sockets.h"

namespace libddp::testing {
namespace {

TEST(TcpLimits, StrangersMakeRoomForOthers) {
    auto server = open("tcp://127.0.0.1:0", true);
    std::vector<std::unique_ptr<RawSocket>> others, flood;
    for (int i = 0; i < 10; ++i)
        others.push_back(std::make_unique<RawSocket>(server->port(), "127.0.0.3"));
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 300; ++i)
        flood.push_back(std::make_unique<RawSocket>(server->port(), "127.0.0.2"));
    EXPECT_TRUE(open(server->describe())->list_keys("").empty());
    for (int i = 0; i < 50; ++i)
        EXPECT_TRUE(flood[static_cast<std::size_t>(i)]->closed_by_peer(2000)) << i;
    // All of them have to go after 5 s.
    if (elapsed_ms(start) < 4000) {
        for (auto& socket : others) EXPECT_FALSE(socket->closed_by_peer(0));
        EXPECT_FALSE(flood.back()->closed_by_peer(0));
    }
}

TEST(TcpLimits, ThousandsOfSilentConnectionsKeepNobodyOut) {
    constexpr int kFlood = 5000;
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    if (before.rlim_max < kFlood + 200)
        GTEST_SKIP() << "the limit of open files is " << before.rlim_max;
    const rlimit raised{before.rlim_max, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
    {
        Child child({"tcp://127.0.0.1:0", "few"});
        const int port = std::stoi(child.read_line());
        auto early = open(str("tcp://127.0.0.1:", port));
        std::vector<std::unique_ptr<RawSocket>> flood;
        for (int i = 0; i < kFlood; ++i) flood.push_back(std::make_unique<RawSocket>(port));
        auto start = std::chrono::steady_clock::now();
        open(str("tcp://127.0.0.1:", port))->set("honest", "yes");
        EXPECT_LT(elapsed_ms(start), with_slack(5000));
        EXPECT_EQ(early->get("honest"), "yes");
    }
    setrlimit(RLIMIT_NOFILE, &before);
}

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST(TcpLimits, AServerWithoutDescriptorsTurnsClientsAway) {
    auto server = open("tcp://127.0.0.1:0", true);
    auto client = open(server->describe());
    {
        std::vector<Descriptor> sockets;
        for (int i = 0; i < 20; ++i)
            sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const FewDescriptors none(0);
        const SocketAddress address =
            resolve("127.0.0.1", server->port(), Deadline::after_ms(kLongMs)).front();
        for (auto& socket : sockets)
            EXPECT_EQ(connect(socket.get(), address.get(), address.size), 0);
        char byte;
        // closed, and not left waiting
        for (auto& socket : sockets) EXPECT_LE(recv(socket.get(), &byte, 1, 0), 0);
        const double before = cpu_seconds();
        client->set("k", "v");
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        EXPECT_LT(cpu_seconds() - before, 0.2);
    }
    EXPECT_EQ(open(server->describe())->get("k"), "v");
}

Request get(const std::string& key, std::int64_t timeout_ms = kNoWait) {
    Request request;
    request.op = Op::kGet;
    request.keys = {key};
    request.timeout_ms = timeout_ms;
    return request;
}

std::string header_of(std::size_t payload) {
    ByteWriter header;
    header.u32(static_cast<std::uint32_t>(payload));
    header.u8(static_cast<std::uint8_t>(Op::kSet));
    header.u64(1);
    return header.take();
}

// A server with small limits, and a client that is honest.
class TcpMemory : public ::testing::Test {
protected:
    static ServerLimits small() {
        ServerLimits limits;
        limits.unread = 4 << 20;
        limits.hopeless = 12 << 20;
        limits.answers = 24 << 20;
        limits.requests = 8 << 20;
        limits.incomplete = std::chrono::milliseconds(1500);
        return limits;
    }
    std::string uri() const { return str("tcp://127.0.0.1:", server.port()); }
    void expect_prompt() {
        auto start = std::chrono::steady_clock::now();
        honest->set("prompt", "yes");
        EXPECT_EQ(honest->get("prompt"), "yes");
        EXPECT_LT(elapsed_ms(start), with_slack(1000));
    }

    TcpServer server{"127.0.0.1", 0, "", Deadline::after_ms(kLongMs), small()};
    std::shared_ptr<Store> honest = open(uri());
};

TEST_F(TcpMemory, LongRequestsTakeTurns) {
    RawClient first(server.port());
    first.send(header_of(6 << 20) + std::string(1 << 20, 'x'));
    honest->check({});  // the server has seen it
    auto second = std::async(std::launch::async,
                             [&] { open(uri())->set("long", std::string(3 << 20, 'x')); });
    EXPECT_EQ(second.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
    expect_prompt();
    first.send(std::string(5 << 20, 'x'));  // complete, and no request
    EXPECT_TRUE(first.closed_by_peer(kLongMs));
    second.get();
    EXPECT_TRUE(honest->check({"long"}));
}

TEST_F(TcpMemory, AClientThatEndsGivesItsTurnBack) {
    auto first = std::make_unique<RawClient>(server.port());
    auto waiting = std::make_unique<RawClient>(server.port());
    first->send(header_of(6 << 20));
    honest->check({});
    waiting->send(header_of(7 << 20));
    honest->check({});
    auto third = std::async(std::launch::async,
                            [&] { open(uri())->set("long", std::string(6 << 20, 'x')); });
    EXPECT_EQ(third.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
    waiting.reset();
    EXPECT_EQ(third.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
    first.reset();
    third.get();
}

TEST_F(TcpMemory, ARequestThatIsNeverCompleteDoesNotKeepOthersWaiting) {
    RawClient stuck(server.port());
    stuck.send(header_of(6 << 20) + std::string(1 << 20, 'x'));
    honest->check({});
    auto start = std::chrono::steady_clock::now();
    open(uri())->set("long", std::string(3 << 20, 'x'));
    EXPECT_GT(elapsed_ms(start), 1000);
    EXPECT_LT(elapsed_ms(start), with_slack(8000));
    EXPECT_TRUE(stuck.closed_by_peer(kLongMs));
}

TEST_F(TcpMemory, ASlowReaderIsNotReadFrom) {
    honest->set("value", std::string(3 << 20, 'v'));
    RawClient slow(server.port());
    std::string requests;
    for (std::uint64_t id = 1; id <= 20; ++id) requests += encode_request(id, get("value"));
    Request last;
    last.op = Op::kSet;
    last.keys = {"last"};
    last.values = {"yes"};
    slow.send(requests + encode_request(21, last));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    expect_prompt();
    EXPECT_FALSE(honest->check({"last"}));
    for (std::uint64_t id = 1; id <= 21; ++id) {
        auto frame = slow.receive_frame();
        ASSERT_TRUE(frame);
        EXPECT_EQ(frame->id, id);
    }
    EXPECT_TRUE(honest->check({"last"}));
}

TEST_F(TcpMemory, WaitsThatEndAtOnceCannotFillTheServer) {
    RawClient slow(server.port());
    std::string requests;
    for (std::uint64_t id = 1; id <= 8; ++id)
        requests += encode_request(id, get("value", kForever));
    slow.send(requests);
    RawClient reader(server.port());
    reader.send(encode_request(1, get("value", kForever)));
    honest->check({});
    honest->set("value", std::string(3 << 20, 'v'));
    expect_prompt();  // by now the server has answered all waits, and nobody has read
    EXPECT_TRUE(slow.closed_by_peer(kLongMs));
    auto frame = reader.receive_frame();
    ASSERT_TRUE(frame);
    EXPECT_EQ(decode_reply(*frame).values.front().size(), std::size_t{3} << 20);
}

// Each has less than one client may have. Together they have too much.
TEST_F(TcpMemory, SlowReadersTogetherCannotFillTheServer) {
    std::vector<std::unique_ptr<RawClient>> slow;
    for (int i = 0; i < 6; ++i) {
        slow.push_back(std::make_unique<RawClient>(server.port()));
        std::string requests;
        for (std::uint64_t id = 1; id <= 4; ++id)
            requests += encode_request(id, get(str("value", i, id), kForever));
        slow.back()->send(requests);
        honest->check({});
        for (int id = 1; id <= 4; ++id)
            honest->set(str("value", i, id),
                        std::string(3 << 20, static_cast<char>('0' + 4 * i + id)));
    }
    expect_prompt();
    int closed = 0;
    for (auto& client : slow) {
        int answers = 0;
        while (answers < 4 && client->receive_frame()) ++answers;
        closed += answers < 4;
    }
    EXPECT_GT(closed, 0);
    EXPECT_LT(closed, 6);
    expect_prompt();
}

// Ranks that wait for one long value are no burden.
TEST_F(TcpMemory, ManyMayWaitForOneValue) {
    std::vector<std::unique_ptr<RawClient>> readers;
    for (int i = 0; i < 20; ++i) {
        readers.push_back(std::make_unique<RawClient>(server.port()));
        readers.back()->send(encode_request(1, get("value", kForever)));
    }
    honest->check({});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    honest->set("value", std::string(3 << 20, 'v'));
    for (auto& reader : readers) {
        auto frame = reader->receive_frame();
        ASSERT_TRUE(frame);
        EXPECT_EQ(decode_reply(*frame).values.front().size(), std::size_t{3} << 20);
    }
}

}  // namespace
}  // namespace libddp::testing
