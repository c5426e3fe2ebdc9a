// The strangers that have to go when too many come.
#include "wire/strangers.h"

#include "support.h"
#include "util/deadline.h"

namespace libddp::wire::testing {
namespace {

SocketAddress address_of(const std::string& host) {
    return resolve(host, 1, Deadline::after_ms(0)).front();
}

TEST(Strangers, TheOldestGoesFirst) {
    Strangers strangers;
    EXPECT_FALSE(strangers.next_to_go());
    for (std::uint64_t id = 1; id <= Strangers::kMost; ++id)
        strangers.add(id, address_of("10.0.0.1"));
    EXPECT_FALSE(strangers.too_many());
    strangers.add(1000, address_of("10.0.0.1"));
    EXPECT_TRUE(strangers.too_many());
    EXPECT_EQ(strangers.next_to_go(), 1U);
    strangers.remove(1);
    EXPECT_EQ(strangers.next_to_go(), 2U);
    EXPECT_FALSE(strangers.too_many());
}

TEST(Strangers, OneNetworkHasAtMostHalf) {
    for (const char* flood : {"10.0.0.1", "2001:db8::1"}) {
        Strangers strangers;
        std::uint64_t id = 0;
        for (int i = 0; i < 20; ++i) strangers.add(++id, address_of(str("192.0.2.", i)));
        const std::string v6 = "2001:db8::";
        for (int i = 0; i < 500; ++i) {
            strangers.add(++id, address_of(flood == v6 + "1" ? str(v6, i) : flood));
            while (strangers.too_many()) strangers.remove(*strangers.next_to_go());
        }
        EXPECT_EQ(strangers.oldest(), 1U);  // of another network
    }
}

TEST(Strangers, ThePromisingStay) {
    Strangers strangers;
    for (std::uint64_t id = 1; id <= 200; ++id) {
        strangers.add(id, address_of("10.0.0.1"));
        if (id <= 127) strangers.is_promising(id);
    }
    EXPECT_EQ(strangers.next_to_go(), 128U);
    EXPECT_FALSE(strangers.busy());
    strangers.is_promising(128);
    EXPECT_TRUE(strangers.busy());
    EXPECT_EQ(strangers.oldest_promising(), 1U);
    strangers.is_promising(1000);  // unknown
    for (std::uint64_t id = 1; id <= 200; ++id) strangers.remove(id);
    EXPECT_FALSE(strangers.oldest());
}

TEST(Strangers, ANetworkHasItsShareOfThePromising) {
    Strangers strangers;
    const auto come = [&](std::uint64_t id, const char* host) {
        strangers.add(id, address_of(host));
        strangers.is_promising(id);
    };
    come(1, "192.0.2.1");
    for (std::uint64_t id = 2; id < 2 + Strangers::kShare; ++id) come(id, "10.0.0.1");
    EXPECT_FALSE(strangers.oldest_of_crowd());
    come(100, "10.0.0.1");
    EXPECT_EQ(strangers.oldest_of_crowd(), 2U);
    strangers.remove(2);
    EXPECT_FALSE(strangers.oldest_of_crowd());
    // One prefix of 64 bits is one network.
    for (std::uint64_t id = 200; id <= 200 + Strangers::kShare; ++id)
        come(id, str("2001:db8::", id).c_str());
    EXPECT_EQ(strangers.oldest_of_crowd(), 200U);
}

}  // namespace
}  // namespace libddp::wire::testing
