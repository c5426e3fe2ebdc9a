// The executors of links that take turns. Whoever waits for a work of one runs the callbacks of all, and never lends
// itself to an operation: from inside one it could not, and two ranks, each inside an operation of another link, would
// wait for each other's callbacks. Operations run on the progress threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/work.h"

namespace libddp {

class Crew {
public:
    using Members = std::vector<std::weak_ptr<Executor>>;

    explicit Crew(Members members) : members_(std::move(members)) {}

    // Waits until `work` of a member is done; false if the deadline passed first.
    bool wait(Work& work, const std::optional<Deadline>& deadline);
    // Runs the continuations of all members that wait for a thread inside a libddp call. False if there were none.
    bool run_callbacks();
    const std::atomic<std::int64_t>& waiting_callbacks() const { return waiting_callbacks_; }
    void count_callbacks(std::int64_t change) { waiting_callbacks_.fetch_add(change, std::memory_order_relaxed); }
    // A work is done, or a callback can run.
    void ring();

private:
    const Members members_;
    std::atomic<std::int64_t> waiting_callbacks_{0};
    std::mutex mutex_;
    std::condition_variable rung_;
    std::uint64_t rings_ = 0;
};

}  // namespace libddp
