// The keys of a group: what ranks compare with, and what is left if the last rank does not finish
// removing them.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "comm/monitor.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/store_state.h"
#include "util/error.h"

using namespace libddp;

namespace {

// Holds its keys itself. From the n-th removal on it can no longer be asked.
class EndingEngine final : public StoreEngine {
public:
    explicit EndingEngine(int removals) : removals_(removals) {}

    Outcome perform(Request request, std::int64_t) override {
        if (request.op == Op::kRemove && removals_-- <= 0)
            fail(DDP_ERROR_UNAVAILABLE, "the store was lost");
        return state_.apply(1, request).value();
    }
    Notifier::Id watch(const std::string&, Notifier::Callback) override { return ++calls_; }
    Notifier::Id watch_connection(Notifier::Callback) override { return ++calls_; }
    void unwatch(Notifier::Id) override {}
    void close() override {}
    std::int64_t alive_until_ms() const override { return INT64_MAX; }

private:
    StoreState state_;
    std::uint64_t calls_ = 0;
    int removals_;
};

TEST(Keys, OfAHalfRemovedGroupKeepARankOutThatWouldFindThem) {
    bool all_removed = false;
    for (int removals = 0; !all_removed; ++removals) {
        ASSERT_LT(removals, 100);
        Store store(std::make_shared<EndingEngine>(removals), {}, "a store that ends");
        const auto shared = std::shared_ptr<Store>(std::shared_ptr<void>(), &store);
        Monitor::Config config;
        config.store = shared;
        config.prefix = "group/";
        config.world = 1;
        config.rank = 0;
        for (const char* name : {"group/net/0", "group/option/backend", "group/zone"})
            store.set(name, "of the past");
        {
            Monitor(config, [](const ErrorInfo&) {}).start();
        }
        all_removed = store.list_keys("group/").empty();
        // A rank that finds a key of the past must also find its rank taken.
        EXPECT_TRUE(all_removed || store.check({"group/rank/0"}))
            << "after " << removals << " removals";
    }
}

// One key, so a rank asks the store once.
TEST(Keys, OptionsAreComparedWithOneKey) {
    const auto server = open_store({"tcp://127.0.0.1:0", true, 5'000, ""});
    const auto create = [&](std::int32_t rank, const std::string& options,
                            ErrorInfo& error) -> std::shared_ptr<Link> {
        GroupConfig config;
        config.rank = rank;
        config.world = 2;
        config.backend = "tcp";
        config.backend_options = options;
        config.timeout_ms = 5'000;
        config.store = open_store({server->describe(), false, 5'000, ""});
        config.prefix = "keys/" + options.substr(0, options.find('=')) + "/";
        try {
            return Link::create(config);
        } catch (const Error& failure) {
            error = failure.info();
            return nullptr;
        }
    };
    const auto create_both = [&](const std::string& of_0, const std::string& of_1,
                                 std::vector<ErrorInfo>& errors) {
        std::vector<std::shared_ptr<Link>> links(2);
        std::thread other([&] { links[1] = create(1, of_1, errors[1]); });
        links[0] = create(0, of_0, errors[0]);
        other.join();
        return links;
    };
    std::vector<ErrorInfo> errors(2);
    const auto links = create_both("", "", errors);
    ASSERT_TRUE(links[0] && links[1]) << errors[0].message << errors[1].message;
    std::vector<std::string> option_keys;
    for (const std::string& key : server->list_keys("keys//"))
        if (key.find("option") != std::string::npos) option_keys.push_back(key);
    EXPECT_EQ(option_keys, std::vector<std::string>{"keys//options"});

    create_both("lanes=1", "lanes=2", errors);
    for (const ErrorInfo& error : errors) {
        EXPECT_EQ(error.code, DDP_ERROR_MISMATCH);
        EXPECT_NE(error.message.find("backend_options"), std::string::npos) << error.message;
        EXPECT_NE(error.message.find("'lanes=1'"), std::string::npos) << error.message;
        EXPECT_NE(error.message.find("'lanes=2'"), std::string::npos) << error.message;
    }
}

}  // namespace
