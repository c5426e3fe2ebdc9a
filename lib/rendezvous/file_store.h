// The file store: participants share one file (file_log.h) and each replays it into a StoreState of
// its own. A thread of each participant looks for changes and for participants that have died,
// whose wills it runs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/file_log.h"
#include "rendezvous/key_watches.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/store_state.h"
#include "util/error.h"
#include "util/mutex.h"

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
    // with_file lets go of the lock while it waits for the file.
    bool with_file(Lock& lock, const Deadline& deadline, const std::function<void()>& use)
        DDP_REQUIRES(mutex_);
    std::optional<Outcome> attempt(Lock& lock, const Request& request, const Deadline& deadline)
        DDP_REQUIRES(mutex_);
    void catch_up() DDP_REQUIRES(mutex_);
    std::optional<Outcome> apply(std::uint64_t owner, const Request& request) DDP_REQUIRES(mutex_);
    void announce() DDP_REQUIRES(mutex_);
    void check_usable() const DDP_REQUIRES(mutex_);
    [[noreturn]] void file_is_busy() const;

    void monitor();
    void bury_the_dead(Lock& lock) DDP_REQUIRES(mutex_);
    void leave(Lock& lock) DDP_REQUIRES(mutex_);

    const std::string path_;
    const std::int64_t call_timeout_ms_;

    Mutex mutex_;
    Condition changed_;
    Condition monitor_wake_;
    FileLog log_ DDP_GUARDED_BY(mutex_);
    StoreState state_ DDP_GUARDED_BY(mutex_);
    // a thread of this process waits for or holds the file
    bool busy_ DDP_GUARDED_BY(mutex_) = false;
    std::atomic<bool> closed_{false};
    std::optional<ErrorInfo> failure_ DDP_GUARDED_BY(mutex_);  // the file became unreadable
    std::size_t waiting_ DDP_GUARDED_BY(mutex_) = 0;
    std::atomic<std::int64_t> locked_ms_{0};  // boot_ms before the file was locked last
    std::thread monitor_;
    Notifier notifier_;
    KeyWatches watches_ DDP_GUARDED_BY(mutex_){notifier_};
};

}  // namespace libddp
