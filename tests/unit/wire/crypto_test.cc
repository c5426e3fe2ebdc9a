// Keys, and a process that ends while threads use OpenSSL.
#include "wire/crypto.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "support.h"

// OpenSSL's memory for a thread of the parent belongs to nobody in a forked child, and would count
// as leaked there.
static bool in_child = false;
#ifdef DDP_SANITIZED
extern "C" __attribute__((used, visibility("default"))) int __lsan_is_turned_off() {
    return in_child;
}
#endif

namespace libddp::wire::testing {
namespace {

TEST(DeriveKey, EachSecretAndLabelHasItsOwn) {
    std::set<Key> keys;
    for (const std::string& secret : {std::string(), std::string("s3cret"), std::string("s3cret "),
                                      std::string(1, '\0'), std::string(5000, 's')})
        for (const char* label : {"", "libddp store", "libddp link"})
            keys.insert(derive_key(secret, label));
    EXPECT_EQ(keys.size(), 15U);
    EXPECT_EQ(derive_key("s3cret", "libddp store"), derive_key("s3cret", "libddp store"));
}

// HKDF-SHA-256 of "libddp:s3cret" with the salt "libddp", as another implementation computes it.
TEST(DeriveKey, IsTheSameInEveryVersion) {
    const Key expected = {0x5f, 0xdc, 0xb6, 0x4b, 0x3a, 0x1c, 0xbb, 0x94, 0x37, 0x27, 0x24,
                          0x71, 0x79, 0xd1, 0x79, 0x51, 0x16, 0xac, 0x00, 0x12, 0x40, 0xec,
                          0xd0, 0x6e, 0xa1, 0x41, 0x3a, 0x47, 0xe8, 0xe0, 0x3a, 0x27};
    EXPECT_EQ(derive_key("s3cret", "libddp store"), expected);
}

TEST(Cryptography, SeveralThreadsMayBeInside) {
    const Cryptography outer;
    ASSERT_TRUE(outer);
    std::thread([] { EXPECT_TRUE(Cryptography()); }).join();
}

// Sends through a channel to itself until the process ends.
void keep_talking(Protection protection, std::atomic<int>& talk) {
    Channels channels = open(protection);
    ++talk;
    const std::string bytes(100'000, 'x');
    try {
        while (true) {
            send_some(*channels.client, bytes);
            receive_some(*channels.server, bytes.size());
        }
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_UNAVAILABLE) << error.info().message;
    }
    // As libddp's own threads do. One that ended now would enter OpenSSL once more, through a
    // destructor of OpenSSL's own.
    while (true) pause();
}

TEST(CryptographyDeathTest, AProcessMayExitWhileThreadsTalk) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            static std::atomic<int> talk{0};
            std::vector<std::thread> threads;
            for (Protection protection : kAll)
                for (int i = 0; i < 2; ++i)
                    threads.emplace_back(keep_talking, protection, std::ref(talk));
            for (auto& thread : threads) thread.detach();
            while (talk < static_cast<int>(threads.size()))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            std::exit(0);
        },
        ::testing::ExitedWithCode(0), "");
}

// The child has none of the other threads, among which some were inside.
TEST(CryptographyDeathTest, AForkedChildMayExit) {
    // A child that is forked while a thread sets OpenSSL up would wait for that thread for ever.
    ASSERT_TRUE(Cryptography());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            while (!stop) {
                const Cryptography inside;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (int i = 0; i < 5; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            in_child = true;
            const bool usable = static_cast<bool>(Cryptography());
            std::exit(usable ? 0 : 1);  // runs the exit handlers
        }
        int status = -1;
        for (int waited = 0; waited < 10'000 && waitpid(child, &status, WNOHANG) == 0; ++waited)
            usleep(1000);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        if (!WIFEXITED(status)) kill(child, SIGKILL);
    }
    stop = true;
    for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace libddp::wire::testing
