// Many threads and many clients at once, on all kinds of store.
#include <atomic>
#include <thread>

#include "support.h"

namespace libddp::testing {
namespace {

class StoreThreads : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Service> service = make_service(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreThreads, ::testing::ValuesIn(store_kinds()),
                         [](const auto& test) { return std::string(test.param); });

// Runs the same work in several threads and reports the first failure of each.
template <class Work>
void run_threads(int count, Work work) {
    std::vector<std::thread> threads;
    for (int index = 0; index < count; ++index) {
        threads.emplace_back([&work, index] {
            ErrorInfo error = error_of([&] { work(index); });
            EXPECT_EQ(error.code, DDP_OK) << error.message;
        });
    }
    for (auto& thread : threads) thread.join();
}

TEST_P(StoreThreads, EightThreadsWaitAndSetOverOneClient) {
    constexpr int kThreads = 8;
    constexpr int kRounds = 30;
    auto store = service->connect();
    auto key = [](int round, int thread) { return str("r", round, "/t", thread); };
    run_threads(kThreads, [&](int index) {
        for (int round = 0; round < kRounds; ++round) {
            store->set(key(round, index), std::to_string(index));
            // Waits for the next thread's key: without several requests in flight this would stand
            // still.
            EXPECT_EQ(store->get(key(round, (index + 1) % kThreads), kLongMs),
                      std::to_string((index + 1) % kThreads));
        }
    });
    EXPECT_EQ(store->list_keys("").size(), static_cast<std::size_t>(kThreads * kRounds));
}

TEST_P(StoreThreads, AddsAreAtomic) {
    auto first = service->connect();
    auto second = service->connect();
    run_threads(8, [&](int index) {
        Store& store = index % 2 == 0 ? *first : *second;
        for (int round = 0; round < 50; ++round) store.add("sum", index);
    });
    EXPECT_EQ(first->get("sum"), std::to_string(50 * 28));
}

TEST_P(StoreThreads, ManyClientsMeet) {
    const int clients = std::string(GetParam()) == "tcp" ? 256 : 32;
    run_threads(clients, [&](int index) {
        auto store = service->connect();
        store->set(str("rank/", index), "here");
        if (store->add("here", 1) == clients) store->set("all", "");
        store->wait({"all"}, 60'000);
        EXPECT_EQ(store->list_keys("rank/").size(), static_cast<std::size_t>(clients));
    });
}

TEST_P(StoreThreads, AStoreMayGoWhileThreadsAreInsideIt) {
    for (int round = 0; round < 10; ++round) {
        auto store = service->connect();
        std::atomic<int> started{0};
        std::vector<std::thread> threads;
        for (int index = 0; index < 4; ++index) {
            threads.emplace_back([raw = store.get(), &started] {
                ++started;
                EXPECT_EQ(error_of([&] { raw->get("never", 60'000); }).code, DDP_ERROR_ABORTED);
            });
        }
        while (started < 4) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(60));  // they are inside get now
        auto start = std::chrono::steady_clock::now();
        store.reset();
        EXPECT_LT(elapsed_ms(start), with_slack(1500));
        for (auto& thread : threads) thread.join();
    }
}

}  // namespace
}  // namespace libddp::testing
