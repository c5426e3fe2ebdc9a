// The keys that a group leaves behind if the last rank does not finish removing them.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

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
        if (request.op == Op::kRemove && removals_-- <= 0) fail(DDP_ERROR_UNAVAILABLE, "the store was lost");
        return state_.apply({1, ++calls_}, request).value();
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
        EngineStore store(std::make_shared<EndingEngine>(removals), {}, "a store that ends");
        const auto shared = std::shared_ptr<Store>(std::shared_ptr<void>(), &store);
        Monitor::Config config;
        config.store = shared;
        config.prefix = "group/";
        config.world = 1;
        config.rank = 0;
        for (const char* name : {"group/net/0", "group/option/backend", "group/zone"}) store.set(name, "of the past");
        {
            Monitor(config, [](const ErrorInfo&) {}).start();
        }
        all_removed = store.list_keys("group/").empty();
        // A rank that finds a key of the past must also find its rank taken.
        EXPECT_TRUE(all_removed || store.check({"group/rank/0"})) << "after " << removals << " removals";
    }
}

}  // namespace
