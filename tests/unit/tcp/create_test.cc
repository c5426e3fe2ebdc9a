// The ways in which connecting succeeds late, and fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "unit/backend/fake_host.h"
#include "wire/gate.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

using namespace testing_backend;
using ::testing::HasSubstr;

Kind tcp_kind(const char* options = "") {
    return {"tcp", tcp_backend(), options};
}

TEST(TcpCreate, TimesOutAndNamesTheRankThatDidNotCome) {
    MemoryStore store;
    const auto begin = std::chrono::steady_clock::now();
    each_rank(2, [&](int r) {
        Rank rank(store, r, 3, "", 1500, 0, tcp_backend());
        EXPECT_EQ(rank.status, DDP_ERROR_TIMEOUT) << rank.failure.message;
        EXPECT_EQ(rank.failure.rank, r == 0 ? 2 : -1);
    });
    EXPECT_LT(elapsed_ms(begin), 1500 + with_slack(1700));
}

// It said where it listens, but does not come.
TEST(TcpCreate, TimesOutOnARankThatStopsHalfway) {
    MemoryStore store;
    store.set("address/machine/1", "elsewhere");
    store.set("tcp/listening/1", "encrypted 1 127.0.0.1 9");
    Rank rank(store, 0, 2, "", 400, 0, tcp_backend());
    EXPECT_EQ(rank.status, DDP_ERROR_TIMEOUT) << rank.failure.message;
    EXPECT_EQ(rank.failure.rank, 1);
}

TEST(TcpCreate, TimesOutOnARankThatDoesNotListen) {
    MemoryStore store;
    store.set("address/aim", "local 127.0.0.1");
    store.set("tcp/group", "name secret");
    store.set("tcp/all", "encrypted 1 127.0.0.1 9\nencrypted 1 127.0.0.1 9");
    Rank rank(store, 1, 2, "", 400, 0, tcp_backend());
    EXPECT_EQ(rank.status, DDP_ERROR_UNAVAILABLE) << rank.failure.message;
    EXPECT_EQ(rank.failure.rank, 0);
    EXPECT_THAT(
        rank.failure.message,
        HasSubstr("rank 1 could not connect with rank 0 (127.0.0.1 port 9): Connection refused"));
}

TEST(TcpCreate, RanksWithDifferentWiresHearOfIt) {
    MemoryStore store;
    each_rank(2, [&](int r) {
        Rank rank(store, r, 2, r == 0 ? "wire=encrypted" : "wire=plain", r == 0 ? 20000 : 300, 0,
                  tcp_backend());
        EXPECT_EQ(rank.status, r == 0 ? DDP_ERROR_MISMATCH : DDP_ERROR_TIMEOUT)
            << rank.failure.message;
        if (r != 0) return;
        EXPECT_EQ(rank.failure.rank, 1);
        EXPECT_THAT(rank.failure.message, HasSubstr("DDP_WIRE"));
    });
}

TEST(TcpCreate, ABrokenGroupEndsTheWait) {
    MemoryStore store;
    store.set("address/machine/1", "elsewhere");
    store.set("tcp/listening/1", "encrypted 1 127.0.0.1 9");
    std::thread breaker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        store.break_with(DDP_ERROR_RANK_FAILED);
    });
    const auto begin = std::chrono::steady_clock::now();
    Rank rank(store, 0, 2, "", 20000, 0, tcp_backend());
    EXPECT_EQ(rank.status, DDP_ERROR_RANK_FAILED) << rank.failure.message;
    EXPECT_LT(elapsed_ms(begin), with_slack(2000));
    breaker.join();
}

// Rank 0 seems to listen at another port, where what comes is cut off a few times and then passed
// on.
class CutAtFirst final : public KeyValueStore {
public:
    static constexpr int kCuts = 4;

    CutAtFirst() : listener_(wire::listen_on("127.0.0.1", 0)), thread_([this] { pass_on(); }) {}
    ~CutAtFirst() override {
        end_ = true;
        thread_.join();
    }
    void set(const std::string& key, const std::string& value) override {
        if (key != "tcp/all") return inner_.set(key, value);
        // "encrypted 1 127.0.0.1 PORT" of rank 0, and the line of rank 1.
        const auto line_end = value.find('\n'), port_at = value.rfind(' ', line_end) + 1;
        target_ = std::stoi(value.substr(port_at, line_end - port_at));
        inner_.set(key, value.substr(0, port_at) +
                            std::to_string(local_address(listener_.get()).port()) +
                            value.substr(line_end));
    }
    ddp_status get(const std::string& key, std::int64_t timeout_ms, std::string& value) override {
        return inner_.get(key, timeout_ms, value);
    }

private:
    void pass_on() {
        std::vector<std::thread> pumps;
        for (int come = 0; !end_;) {
            Descriptor in(accept(listener_.get(), nullptr, nullptr));
            if (!in) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                continue;
            }
            if (++come <= kCuts) continue;  // at once, or in the middle of the handshake
            const auto ends = std::make_shared<std::pair<Descriptor, Descriptor>>(
                std::move(in), Descriptor(socket(AF_INET, SOCK_STREAM, 0)));
            const SocketAddress to = resolve("127.0.0.1", target_, Deadline::after_ms(0)).front();
            ASSERT_EQ(connect(ends->second.get(), to.get(), to.size), 0);
            pumps.emplace_back([ends] { pump(ends->first.get(), ends->second.get()); });
            pumps.emplace_back([ends] { pump(ends->second.get(), ends->first.get()); });
        }
        for (auto& pump : pumps) pump.join();
    }
    static void pump(int from, int to) {
        char bytes[4096];
        for (ssize_t count; (count = read(from, bytes, sizeof bytes)) > 0;)
            if (send(to, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL) != count) break;
        shutdown(to, SHUT_RDWR);
        shutdown(from, SHUT_RDWR);
    }

    MemoryStore inner_;
    Descriptor listener_;
    std::atomic<int> target_{0};
    std::atomic<bool> end_{false};
    std::thread thread_;
};

TEST(TcpCreate, ConnectionsThatBreakAreMadeAgain) {
    CutAtFirst store;
    each_rank(2, [&](int r) {
        Rank rank(store, r, 2, "", 20000, 0, tcp_backend());
        ASSERT_EQ(rank.status, DDP_OK) << rank.failure.message;
        std::vector<float> data(100'000, 1);
        EXPECT_EQ(rank.allreduce(data), DDP_OK) << rank.failure.message;
        EXPECT_EQ(data, std::vector<float>(data.size(), 2));
    });
}

TEST(TcpCreate, AWorldOfOneNeedsNoStore) {
    MemoryStore store;
    store.break_with(DDP_ERROR_UNAVAILABLE);
    Rank rank(store, 0, 1, "", 20000, 0, tcp_backend());
    ASSERT_EQ(rank.status, DDP_OK);
    std::vector<float> send = {1, 2, 3}, recv(3);
    EXPECT_EQ(
        rank.run(DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_SUM, send.data(), recv.data(), 3, 0.5),
        DDP_OK);
    EXPECT_EQ(recv, (std::vector<float>{0.5f, 1, 1.5f}));
    EXPECT_EQ(rank.match("x"), DDP_OK);
    EXPECT_EQ(rank.barrier(), DDP_OK);
    rank.abort();
    EXPECT_EQ(rank.allreduce(send), DDP_ERROR_ABORTED);
}

// One listener and one thread for all groups of the process.
TEST(TcpCreate, GroupsOfAProcessShareTheListener) {
    World first(2, tcp_kind()), second(2, tcp_kind());
    ASSERT_TRUE(first.connected() && second.connected());
    for (World* world : {&first, &second})
        world->each([](Rank& rank) { EXPECT_EQ(rank.barrier(), DDP_OK); });
}

}  // namespace
}  // namespace libddp
