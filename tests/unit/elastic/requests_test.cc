// How often the members of an elastic job ask its store. A wait must not ask again and again.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "elastic/membership.h"
#include "rendezvous/file_store.h"
#include "rendezvous/store_engine.h"
#include "support.h"

namespace libddp {
namespace {

using testing::kLongMs;

// Counts what is asked of a store.
class CountingEngine final : public StoreEngine {
public:
    CountingEngine(const std::string& path, std::atomic<int>& count)
        : store_(path, kLongMs), count_(count) {}

    Outcome perform(Request request, std::int64_t within_ms) override {
        ++count_;
        return store_.perform(std::move(request), within_ms);
    }
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override {
        ++count_;
        return store_.watch(key, std::move(seen));
    }
    Notifier::Id watch_connection(Notifier::Callback lost) override {
        return store_.watch_connection(std::move(lost));
    }
    void unwatch(Notifier::Id id) override { store_.unwatch(id); }
    void close() override { store_.close(); }
    std::int64_t raise_fence(std::int64_t at_least) override {
        ++count_;
        return store_.raise_fence(at_least);
    }
    std::int64_t alive_until_ms() const override { return store_.alive_until_ms(); }

private:
    FileStore store_;
    std::atomic<int>& count_;
};

TEST(Requests, AMeetingThatWaitsForAMemberDoesNotAskAgainAndAgain) {
    constexpr int kWorld = 4;
    const testing::TempPath path;
    std::atomic<int> count{0};
    const MembershipOptions options{kWorld, kWorld, kLongMs, kLongMs};
    std::vector<std::unique_ptr<Membership>> all;
    for (int i = 0; i < kWorld; ++i)
        all.push_back(std::make_unique<Membership>(
            std::make_shared<Store>(std::make_shared<CountingEngine>(path.file(), count),
                                    StoreConfig{}, "counted"),
            "job", options));
    const auto meet = [&](std::int64_t steps, int from, int to) {
        std::vector<std::future<Roster>> rosters;
        for (int i = from; i < to; ++i)
            rosters.push_back(
                std::async(std::launch::async, [&, i, steps] { return all[i]->meet(steps); }));
        return rosters;
    };
    for (const std::int64_t steps : {-1, 7}) {
        count = 0;
        auto early = meet(steps, 0, kWorld - 1);
        // As long as a member may take that has a long step. Nobody may ask the store meanwhile.
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        auto last = meet(steps, kWorld - 1, kWorld);
        for (auto* rosters : {&early, &last})
            for (auto& roster : *rosters)
                EXPECT_EQ(roster.get().members.size(), static_cast<std::size_t>(kWorld));
        // A proposal reads what every member has written.
        EXPECT_LE(count, kWorld * (40 + 2 * kWorld)) << "at steps " << steps;
    }
}

}  // namespace
}  // namespace libddp
