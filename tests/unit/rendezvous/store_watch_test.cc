// Watches, on all kinds of store.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support.h"

namespace libddp::testing {
namespace {

// A value that another thread delivers.
class Mailbox {
public:
    void put(const std::string& value) {
        std::lock_guard lock(mutex_);
        values_.push_back(value);
        came_.notify_all();
    }
    std::string take() {
        std::unique_lock lock(mutex_);
        if (!came_.wait_for(lock, std::chrono::milliseconds(kLongMs),
                            [&] { return !values_.empty(); }))
            return "(none)";
        std::string value = values_.front();
        values_.erase(values_.begin());
        return value;
    }
    std::size_t size() {
        std::lock_guard lock(mutex_);
        return values_.size();
    }

private:
    std::mutex mutex_;
    std::condition_variable came_;
    std::vector<std::string> values_;
};

class StoreWatch : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Service> service = make_service(GetParam());
    Mailbox mail;
    std::shared_ptr<Store> a = service->connect();
    std::shared_ptr<Store> b = service->connect();
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreWatch, ::testing::ValuesIn(store_kinds()),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(StoreWatch, SeesAKeyOnce) {
    a->watch("k", [&](std::string value) { mail.put(value); });
    EXPECT_EQ(mail.size(), 0u);
    b->set("k", "1");
    EXPECT_EQ(mail.take(), "1");
    b->set("k", "2");
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_EQ(mail.size(), 0u);
}

TEST_P(StoreWatch, SeesAKeyThatExistsAlready) {
    b->set("k", "old");
    a->watch("k", [&](std::string value) { mail.put(value); });
    EXPECT_EQ(mail.take(), "old");
}

TEST_P(StoreWatch, SeesAWill) {
    a->watch("k", [&](std::string value) { mail.put(value); });
    b->set_will("k", "dead");
    b.reset();
    EXPECT_EQ(mail.take(), "dead");
}

TEST_P(StoreWatch, UnwatchedIsNotSeen) {
    auto watch = a->watch("k", [&](std::string value) { mail.put(value); });
    a->unwatch(watch);
    a->unwatch(watch);
    a->watch("k", [&](std::string) { mail.put("second"); });
    b->set("k", "1");
    EXPECT_EQ(mail.take(), "second");
    EXPECT_EQ(mail.size(), 0u);
}

TEST_P(StoreWatch, UnwatchWaitsForACallThatRuns) {
    std::atomic<bool> started{false};
    std::atomic<bool> finished{false};
    auto watch = a->watch("k", [&](std::string) {
        started = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        finished = true;
    });
    b->set("k", "");
    ASSERT_TRUE(eventually([&] { return started.load(); }));
    a->unwatch(watch);
    EXPECT_TRUE(finished);
}

TEST_P(StoreWatch, ACallbackMayUseTheStoreAndMayThrow) {
    a->watch("k", [&](std::string value) {
        a->set("seen", value);
        a->watch("next", [&](std::string) { mail.put("nested"); });
        throw std::runtime_error("on purpose");
    });
    b->set("k", "x");
    EXPECT_EQ(b->get("seen", kLongMs), "x");
    b->set("next", "");
    EXPECT_EQ(mail.take(), "nested");
}

TEST_P(StoreWatch, ACallbackMayDropTheLastReference) {
    auto holder = std::make_shared<std::shared_ptr<Store>>(a);
    a->watch("k", [&, holder](std::string) {
        holder->reset();
        mail.put("dropped");
    });
    a.reset();
    b->set("k", "");
    EXPECT_EQ(mail.take(), "dropped");
}

TEST_P(StoreWatch, CloseEndsWatches) {
    a->watch("k", [&](std::string value) { mail.put(value); });
    a->close();
    b->set("k", "");
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_EQ(mail.size(), 0u);
}

TEST_P(StoreWatch, ManyWatches) {
    constexpr int kMany = 200;
    std::atomic<int> seen{0};
    for (int i = 0; i < kMany; ++i) a->watch(str("k", i % 10), [&](std::string) { ++seen; });
    for (int i = 0; i < 10; ++i) b->set(str("k", i), "");
    EXPECT_TRUE(eventually([&] { return seen == kMany; }));
    a->close();
}

}  // namespace
}  // namespace libddp::testing
