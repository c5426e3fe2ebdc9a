// A resolver that does not answer: the address of a rank is chosen without it, or the error says
// what did not come.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "backends/common/address.h"
#include "support/slack.h"
#include "util/error.h"

namespace libddp {
namespace {

// While this lives, no name is resolved, and whoever asks waits.
class SilentResolver {
public:
    SilentResolver() { set(true); }
    ~SilentResolver() { set(false); }
    static void wait() {
        std::unique_lock lock(mutex());
        changed().wait_for(lock, std::chrono::seconds(120), [] { return !silent(); });
    }

private:
    static void set(bool value) {
        const std::lock_guard lock(mutex());
        silent() = value;
        changed().notify_all();
    }
    static std::mutex& mutex() {
        static std::mutex& one = *new std::mutex;
        return one;
    }
    static std::condition_variable& changed() {
        static std::condition_variable& one = *new std::condition_variable;
        return one;
    }
    static bool& silent() {
        static bool one = false;
        return one;
    }
};

}  // namespace
}  // namespace libddp

// In place of the C library's.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
    const bool is_number = hints && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (!is_number) libddp::SilentResolver::wait();
    using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
    static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
    return real(name, service, hints, found);
}

namespace libddp {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTimeoutMs = 20'000;

// As rank 0 of two, whose other rank is on another machine. aim: what it tells that rank.
std::string address_of_rank_0(const backend::Network& network, std::string& aim) {
    ddp_backend_host host{};
    host.struct_size = sizeof host;
    host.handle = &aim;
    host.rank = 0;
    host.world_size = 2;
    host.timeout_ms = kTimeoutMs;
    host.store_set = [](void* handle, const char*, const void* data, std::size_t size,
                        ddp_backend_failure*) {
        static_cast<std::string*>(handle)->assign(static_cast<const char*>(data), size);
        return ddp_status{DDP_OK};
    };
    host.store_get = [](void*, const char*, std::int64_t, void** value, std::size_t* size,
                        ddp_backend_failure*) {
        *value = strdup("another machine");
        *size = std::strlen(static_cast<char*>(*value));
        return ddp_status{DDP_OK};
    };
    host.store_value_free = &std::free;
    return backend::choose_address(host, network, Deadline::after_ms(kTimeoutMs));
}

bool has_interface() {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return false;
    bool found = false;
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next)
        found |= entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET &&
                 (entry->ifa_flags & IFF_RUNNING) && !(entry->ifa_flags & IFF_LOOPBACK);
    freeifaddrs(list);
    return found;
}

TEST(OwnName, IsNotWaitedForWhenTheResolverIsSilent) {
    if (!has_interface()) GTEST_SKIP() << "this host has no network interface but the loopback";
    const SilentResolver silent;
    std::string aim;
    const auto begin = Clock::now();
    const std::string address = address_of_rank_0({}, aim);
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(with_slack(15'000)));
    EXPECT_EQ(aim, "remote " + address);
    EXPECT_FALSE(address.starts_with("127."));
}

TEST(OwnName, AHostThatTheUserNamesIsWaitedForWithinTheTimeout) {
    const SilentResolver silent;
    std::string aim;
    const auto begin = Clock::now();
    try {
        backend::Network network;
        network.host = "node0";
        address_of_rank_0(network, aim);
        ADD_FAILURE() << aim;
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(error.info().message, HasSubstr("'node0' does not resolve"));
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(kTimeoutMs * 3 / 4));
}

}  // namespace
}  // namespace libddp
