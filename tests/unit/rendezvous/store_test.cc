// Every operation, on all kinds of store: the semantics of include/ddp/store.h.
#include <future>
#include <limits>
#include <string>
#include <thread>

#include "rendezvous/protocol.h"
#include "support.h"
#include "util/boot_clock.h"

namespace libddp::testing {
namespace {

class StoreTest : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Service> service = make_service(GetParam());
    std::shared_ptr<Store> a = service->connect();
    std::shared_ptr<Store> b = service->connect();
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest, ::testing::ValuesIn(store_kinds()),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(StoreTest, SetAndGet) {
    a->set("key", "value");
    EXPECT_EQ(b->get("key"), "value");
    b->set("key", "other");
    EXPECT_EQ(a->get("key", -1), "other");
    a->set("empty", "");
    EXPECT_EQ(b->get("empty"), "");
    std::string bytes("\0\xff\n", 3);
    a->set(bytes, bytes);
    EXPECT_EQ(b->get(bytes), bytes);
    a->set(std::string(limits::kKey, 'k'), "long");
    EXPECT_EQ(b->get(std::string(limits::kKey, 'k')), "long");
}

TEST_P(StoreTest, AFenceOnlyGrows) {
    EXPECT_EQ(a->raise_fence(0), 0);
    EXPECT_EQ(a->raise_fence(7), 7);
    EXPECT_EQ(b->raise_fence(3), 7);
    std::vector<std::future<void>> threads;
    for (Store* store : {a.get(), b.get()})
        threads.push_back(std::async(std::launch::async, [store] {
            for (std::int64_t fence = 8; fence < 40; ++fence)
                EXPECT_GE(store->raise_fence(fence), fence);
        }));
    threads.clear();
    EXPECT_EQ(a->raise_fence(0), 39);
}

// A member may rely on this time: it is counted from when an answered request was sent, and an idle
// store does not move it.
TEST_P(StoreTest, AProcessKnowsUntilWhenItCountsAsAlive) {
    const std::int64_t before = boot_ms();
    a->set("key", "value");
    EXPECT_GT(a->alive_until_ms(), before);
    EXPECT_LT(a->alive_until_ms(), boot_ms() + 60'000);
}

TEST_P(StoreTest, GetWaitsForTheKey) {
    auto value = std::async(std::launch::async, [&] { return a->get("later", kLongMs); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    b->set("later", "here");
    EXPECT_EQ(value.get(), "here");
}

TEST_P(StoreTest, TimeoutsAreKeptAndNameTheKey) {
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_TIMEOUT, {"'absent'", "150 ms"}, [&] { a->get("absent", 150); });
    EXPECT_GE(elapsed_ms(start), 149);
    EXPECT_LT(elapsed_ms(start), with_slack(1500));
    expect_error(DDP_ERROR_TIMEOUT, {"'absent'", "does not exist"}, [&] { a->get("absent", -1); });
    a->set("there", "");
    expect_error(DDP_ERROR_TIMEOUT, {"'absent'"}, [&] { a->wait({"there", "absent", "too"}, 20); });
}

TEST_P(StoreTest, CompareSet) {
    EXPECT_EQ(a->compare_set("k", "wrong", "x"), "");  // absent, and not expected to be
    EXPECT_FALSE(a->check({"k"}));
    EXPECT_EQ(a->compare_set("k", "", "first"), "first");
    EXPECT_EQ(b->compare_set("k", "", "second"), "first");
    EXPECT_EQ(b->compare_set("k", "first", "second"), "second");
    EXPECT_EQ(a->get("k"), "second");
}

TEST_P(StoreTest, Add) {
    EXPECT_EQ(a->add("n", 5), 5);
    EXPECT_EQ(b->add("n", -7), -2);
    EXPECT_EQ(a->get("n"), "-2");
    a->set("n", "40");
    EXPECT_EQ(b->add("n", 2), 42);
    EXPECT_EQ(b->add("zero", 0), 0);
    a->set("text", "12x");
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {"'text'", "12x"}, [&] { a->add("text", 1); });
    a->add("big", std::numeric_limits<std::int64_t>::max());
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {"'big'", "64 bits"}, [&] { a->add("big", 1); });
    EXPECT_EQ(a->get("text"), "12x");
}

TEST_P(StoreTest, CheckAndWait) {
    EXPECT_TRUE(a->check({}));
    EXPECT_FALSE(a->check({"x", "y"}));
    auto waiting = std::async(std::launch::async, [&] { b->wait({"x", "y", "z"}, kLongMs); });
    a->set("x", "1");
    a->set("y", "2");
    EXPECT_TRUE(b->check({"x", "y"}));
    EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
    a->set("z", "3");
    waiting.get();
    a->wait({});
}

TEST_P(StoreTest, KeysAreListedAndRemoved) {
    for (const char* key : {"job/b", "job/a", "other"}) a->set(key, "");
    EXPECT_EQ(b->list_keys("job/"), (Store::Keys{"job/a", "job/b"}));
    EXPECT_EQ(b->list_keys(""), (Store::Keys{"job/a", "job/b", "other"}));
    EXPECT_TRUE(b->list_keys("none").empty());
    EXPECT_TRUE(a->remove("other"));
    EXPECT_FALSE(b->remove("other"));
    EXPECT_EQ(a->list_keys("").size(), 2U);
}

TEST_P(StoreTest, Limits) {
#ifdef DDP_SANITIZED
    // 64 MiB take etcd itself half a minute on a busy machine.
    if (GetParam() == std::string("etcd")) GTEST_SKIP() << "the optimised build shows it";
#endif
    expect_error(DDP_ERROR_LIMIT, {"1025"}, [&] { a->set(std::string(1025, 'k'), ""); });
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {"key", "empty"}, [&] { a->set("", ""); });
    expect_error(DDP_ERROR_LIMIT, {"'k'"},
                 [&] { a->set("k", std::string(limits::kValue + 1, 'v')); });
    expect_error(DDP_ERROR_LIMIT, {"keys"},
                 [&] { a->check(Store::Keys(limits::kKeysPerRequest + 1, "k")); });
    EXPECT_TRUE(a->list_keys("").empty());
    a->set("k", std::string(limits::kValue, 'v'));
    EXPECT_EQ(b->get("k").size(), limits::kValue);
}

TEST_P(StoreTest, WillsRunWhenTheStoreIsClosedWithoutRemovingThem) {
    a->set_will("left", "yes");
    a->set_will("kept", "no");
    a->remove_will("kept");
    a->remove_will("never made");
    b->set("x", "");
    EXPECT_FALSE(b->check({"left"}));
    a.reset();
    EXPECT_EQ(b->get("left", kLongMs), "yes");
    EXPECT_FALSE(b->check({"kept"}));
}

TEST_P(StoreTest, CloseEndsBlockedCallsAndLaterOnes) {
    auto code = [](auto call) {
        return std::async(std::launch::async, [call] { return error_of(call).code; });
    };
    auto get = code([&] { a->get("never", 60'000); });
    auto wait = code([&] { a->wait({"never", "too"}, 60'000); });
    a->set_will("closed", "yes");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    auto start = std::chrono::steady_clock::now();
    a->close();
    EXPECT_LT(elapsed_ms(start), with_slack(1500));
    EXPECT_EQ(get.get(), DDP_ERROR_ABORTED);
    EXPECT_EQ(wait.get(), DDP_ERROR_ABORTED);
    EXPECT_EQ(error_of([&] { a->set("k", "v"); }).code, DDP_ERROR_ABORTED);
    a->close();
    b->set("k", "v");                             // nobody else is disturbed
    EXPECT_EQ(b->get("closed", kLongMs), "yes");  // what the others see of it may take a moment
}

TEST_P(StoreTest, Describe) {
    const std::string uri = service->uri();
    EXPECT_EQ(a->describe(), uri);
    EXPECT_EQ(a->port(),
              uri.starts_with("tcp://") ? std::stoi(uri.substr(uri.rfind(':') + 1)) : -1);
}

}  // namespace
}  // namespace libddp::testing
