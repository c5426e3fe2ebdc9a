// Options, addresses and the ways in which connecting fails.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <atomic>
#include <cstdlib>

#include "backends/gloo/settings.h"
#include "unit/backend/fake_host.h"
#include "util/error.h"

// The sanitizers have a definition of their own.
#ifndef DDP_SANITIZED
static std::atomic<bool> no_interfaces{false};

// The program's own definition stands before the C library's.
extern "C" int getifaddrs(ifaddrs** list) noexcept {
    static const auto real = reinterpret_cast<int (*)(ifaddrs**)>(dlsym(RTLD_NEXT, "getifaddrs"));
    if (!no_interfaces) return real(list);
    *list = nullptr;
    return 0;
}
#endif

namespace libddp {
namespace {

using namespace testing_backend;
using gloo_tcp::Algorithm;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

gloo_tcp::Settings settings_for(const std::string& options, int world = 4,
                                std::uint32_t flags = 0) {
    ddp_backend_host host{};
    host.options = options.c_str();
    host.world_size = world;
    host.flags = flags;
    return gloo_tcp::read_settings(host);
}

std::string complaint(const std::string& options, int world = 4, std::uint32_t flags = 0) {
    try {
        settings_for(options, world, flags);
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

TEST(Settings, AutomaticAlgorithm) {
    EXPECT_EQ(settings_for("").algorithm, Algorithm::kDirect);
    EXPECT_EQ(settings_for("", 16).algorithm, Algorithm::kDirect);
    EXPECT_EQ(settings_for("", 17).algorithm, Algorithm::kRing);
    EXPECT_EQ(settings_for("algorithm=auto", 64, DDP_GROUP_DETERMINISTIC).algorithm,
              Algorithm::kDirect);
    EXPECT_EQ(settings_for("algorithm=bcube", 8, DDP_GROUP_DETERMINISTIC).algorithm,
              Algorithm::kBcube);
    EXPECT_EQ(settings_for("algorithm=ring").algorithm, Algorithm::kRing);
}

TEST(Settings, Lanes) {
    EXPECT_EQ(settings_for("").lanes, 2);
    EXPECT_EQ(settings_for("", 17).lanes, 1);
    EXPECT_EQ(settings_for("algorithm=ring").lanes, 1);
    EXPECT_EQ(settings_for("lanes=1").lanes, 1);
    EXPECT_EQ(settings_for("lanes=8,algorithm=direct", 17).lanes, 8);
}

// Options that TCP has, too: tests/unit/tcp tests their values.
TEST(Settings, ComplaintsSayWhatIsAllowed) {
    struct {
        const char *options, *words;
        int world = 4;
        std::uint32_t flags = 0;
    } const cases[] = {
        {"threads=2", "no option 'threads'; there are: algorithm, lanes, iface, host"},
        {"algorithm=star", "algorithm 'star' is not one of auto, direct, ring, bcube"},
        {"algorithm", "backend_options of gloo: 'algorithm' is not of the form key=value"},
        {"iface=", "iface"},
        {"iface=lo,host=127.0.0.1", "host"},
        {"algorithm=bcube", "power of two, and it is 6; use algorithm=direct", 6,
         DDP_GROUP_DETERMINISTIC},
        {"lanes=0", "backend_options: lanes: 0 is not between 1 and 8"},
        {"lanes=9", "backend_options: lanes: 9 is not between 1 and 8"},
        {"lanes=2", "lanes=2 needs algorithm=direct; ring and bcube have one", 17},
        {"algorithm=ring", "algorithm=ring is not deterministic above 2 ranks", 3,
         DDP_GROUP_DETERMINISTIC},
    };
    for (const auto& c : cases)
        EXPECT_THAT(complaint(c.options, c.world, c.flags), HasSubstr(c.words)) << c.options;
}

TEST(Settings, InterfaceFromTheEnvironment) {
    setenv("GLOO_SOCKET_IFNAME", "eth7,eth8", 1);
    EXPECT_EQ(settings_for("").network.iface, "eth7");
    setenv("DDP_IFACE", "eth9", 1);
    EXPECT_EQ(settings_for("").network.iface, "eth9");
    EXPECT_EQ(settings_for("iface=lo").network.iface, "lo");
    EXPECT_EQ(settings_for("host=127.0.0.1").network.iface, "");
    unsetenv("DDP_IFACE");
    unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(Settings, Capabilities) {
    const auto capabilities_of = [](Algorithm algorithm, int world) {
        return gloo_tcp::capabilities_of(algorithm, world) &
               (DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC);
    };
    EXPECT_EQ(capabilities_of(Algorithm::kDirect, 5),
              DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC);
    EXPECT_EQ(capabilities_of(Algorithm::kRing, 1),
              DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC);
    EXPECT_EQ(capabilities_of(Algorithm::kRing, 2), std::uint32_t{DDP_BACKEND_DETERMINISTIC});
    EXPECT_EQ(capabilities_of(Algorithm::kRing, 3), 0u);
    EXPECT_EQ(capabilities_of(Algorithm::kBcube, 4), std::uint32_t{DDP_BACKEND_DETERMINISTIC});
    EXPECT_EQ(capabilities_of(Algorithm::kBcube, 6), 0u);
}

TEST(Create, InterfaceAndHostOptions) {
    for (const char* options : {"iface=lo", "host=127.0.0.1", "host=localhost"}) {
        World world(2, options);
        ASSERT_TRUE(world.connected())
            << options << ": " << world[0].failure.message << world[1].failure.message;
        world.each([](Rank& rank) { EXPECT_EQ(rank.barrier(), DDP_OK); });
    }
}

TEST(Create, AnAddressThatIsNotHere) {
    for (const char* options : {"iface=nosuch0", "host=203.0.113.7"}) {
        World world(2, options, 0, 1000);
        for (int r = 0; r < 2; ++r) {
            EXPECT_EQ(world[r].status, DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(world[r].failure.message, HasSubstr(std::string(options).substr(6)));
        }
    }
}

TEST(Create, TimesOutAndNamesTheRankThatDidNotCome) {
    MemoryStore store;
    const auto begin = std::chrono::steady_clock::now();
    each_rank(2, [&](int r) {
        Rank rank(store, r, 3, "", 1500);
        EXPECT_EQ(rank.status, DDP_ERROR_TIMEOUT) << rank.failure.message;
        EXPECT_EQ(rank.failure.rank, r == 0 ? 2 : -1);
    });
    EXPECT_LT(elapsed_ms(begin), 1500 + with_slack(1700));
}

// It said that it is here, but never listens.
TEST(Create, TimesOutOnARankThatStopsHalfway) {
    MemoryStore store;
    store.set("address/machine/1", "elsewhere");
    const auto begin = std::chrono::steady_clock::now();
    Rank rank(store, 0, 2, "", 400);
    EXPECT_EQ(rank.status, DDP_ERROR_UNAVAILABLE) << rank.failure.message;
    EXPECT_EQ(rank.failure.rank, 1);
    EXPECT_THAT(rank.failure.message,
                MatchesRegex("rank 0, listening on .*, could not connect with rank 1: .*; choose "
                             "another network with the option iface=NAME or host=ADDRESS, .*"));
    EXPECT_LT(elapsed_ms(begin), with_slack(1500));
}

TEST(Create, TheLoopbackIsNoAddressForOtherHosts) {
    for (int r = 0; r < 2; ++r) {
        MemoryStore store;
        if (r == 0)
            store.set("address/machine/1", "elsewhere");
        else
            store.set("address/aim", "remote 127.0.0.1");
        Rank rank(store, r, 2, "host=127.0.0.1", 400);
        EXPECT_EQ(rank.status, DDP_ERROR_INVALID_ARGUMENT) << rank.failure.message;
        EXPECT_THAT(rank.failure.message,
                    HasSubstr(r == 0 ? "rank 0's address 127.0.0.1 is reached from one host only"
                                     : "this rank's address 127.0.0.1 is reached from one host"));
    }
}

TEST(Create, ABrokenGroupEndsTheWait) {
    MemoryStore store;
    std::thread breaker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        store.break_with(DDP_ERROR_RANK_FAILED);
    });
    const auto begin = std::chrono::steady_clock::now();
    Rank rank(store, 0, 2);
    EXPECT_EQ(rank.status, DDP_ERROR_RANK_FAILED);
    EXPECT_LT(elapsed_ms(begin), with_slack(2000));
    breaker.join();
}

// Ranks that do not share a loopback meet on an interface's address.
TEST(Create, RanksOfDifferentMachines) {
    class ForeignStore final : public KeyValueStore {
    public:
        void set(const std::string& key, const std::string& value) override {
            inner.set(key, key == "address/machine/1" ? "another machine" : value);
        }
        ddp_status get(const std::string& key, std::int64_t timeout_ms,
                       std::string& value) override {
            return inner.get(key, timeout_ms, value);
        }
        MemoryStore inner;
    } store;
    each_rank(2, [&](int r) {
        Rank rank(store, r, 2);
        ASSERT_EQ(rank.status, DDP_OK) << rank.failure.message;
        EXPECT_EQ(rank.barrier(), DDP_OK);
    });
    std::string aim;
    ASSERT_EQ(store.get("address/aim", 100, aim), DDP_OK);
    EXPECT_TRUE(aim.starts_with("remote ")) << aim;
}

#ifndef DDP_SANITIZED
struct WithoutInterfaces {
    WithoutInterfaces() { no_interfaces = true; }
    ~WithoutInterfaces() { no_interfaces = false; }
};

// Before the other ranks give up on it, and as a failure of its own, which is not taken for an echo
// of another rank's.
TEST(Create, AHostWithoutAnInterfaceSaysSo) {
    const WithoutInterfaces alone;
    MemoryStore store;
    store.set("address/machine/1", "elsewhere");
    store.set("address/aim", "remote 127.0.0.1");
    for (int r = 0; r < 2; ++r) {
        const auto begin = std::chrono::steady_clock::now();
        Rank rank(store, r, 2, "", 3000);
        EXPECT_EQ(rank.status, DDP_ERROR_IO) << rank.failure.message;
        EXPECT_THAT(rank.failure.message, HasSubstr("no network interface that is up"));
        EXPECT_GE(elapsed_ms(begin), 1400) << "a link may come up";
        EXPECT_LT(elapsed_ms(begin), 1500 + with_slack(1000));
    }
}

TEST(Create, ABrokenGroupEndsTheWaitForAnInterface) {
    const WithoutInterfaces alone;
    MemoryStore store;
    store.set("address/machine/1", "elsewhere");
    std::thread breaker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        store.break_with(DDP_ERROR_RANK_FAILED);
    });
    const auto begin = std::chrono::steady_clock::now();
    Rank rank(store, 0, 2);
    EXPECT_EQ(rank.status, DDP_ERROR_RANK_FAILED) << rank.failure.message;
    EXPECT_LT(elapsed_ms(begin), with_slack(2000));
    breaker.join();
}
#endif

TEST(Create, AWorldOfOneNeedsNoStore) {
    MemoryStore store;
    store.break_with(DDP_ERROR_UNAVAILABLE);
    Rank rank(store, 0, 1);
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

}  // namespace
}  // namespace libddp
