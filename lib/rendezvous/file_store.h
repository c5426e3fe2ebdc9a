// The file store: participants share one file (file_log.h) and each replays it into a StoreState of
// its own. A thread of each participant looks for changes and for participants that have died,
// whose wills it runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/file_log.h"
#include "rendezvous/key_watches.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/store_state.h"
#include "util/error.h"

namespace libddp {

class FileStore final : public StoreEngine {
public:
    // timeout_ms: the bound of opening and of calls that do not wait for others.
    FileStore(const std::string& path, std::int64_t timeout_ms);
    ~FileStore() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    // There is no service that could be lost: the callback never runs.
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    bool answers(std::int64_t) override { return true; }
    void unwatch(Notifier::Id id) override;
    void close() override;
    std::int64_t raise_fence(std::int64_t at_least) override;
    std::int64_t alive_until_ms() const override;

private:
    using Lock = std::unique_lock<std::mutex>;

    // All of these: with mutex_ held, which with_file lets go while it waits for the file.
    bool with_file(Lock& lock, const Deadline& deadline, const std::function<void()>& use);
    std::optional<Outcome> attempt(Lock& lock, const Request& request, const Deadline& deadline);
    void catch_up();
    std::optional<Outcome> apply(std::uint64_t owner, const Request& request);
    void announce();
    void check_usable() const;
    [[noreturn]] void file_is_busy() const;

    void monitor();
    void bury_the_dead(Lock& lock);
    void leave(Lock& lock);

    const std::string path_;
    const std::int64_t call_timeout_ms_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable monitor_wake_;
    FileLog log_;
    StoreState state_;
    bool busy_ = false;  // a thread of this process waits for or holds the file
    std::atomic<bool> closed_{false};
    std::optional<ErrorInfo> failure_;  // the file became unreadable
    std::size_t waiting_ = 0;
    std::atomic<std::int64_t> locked_ms_{0};  // boot_ms before the file was locked last
    std::thread monitor_;
    KeyWatches watches_;
};

}  // namespace libddp
