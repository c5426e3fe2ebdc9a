#include "comm/monitor.h"

#include <chrono>
#include <vector>

#include "comm/verdict.h"
#include "util/deadline.h"
#include "util/log.h"
#include "util/options.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// How long a failed transport waits for the verdict before it looks for the cause itself. Verdicts take milliseconds.
constexpr std::int64_t kVerdictMs = 1'000;
// How long ranks, and the store, have to answer when somebody asks after a timeout. A live process answers in milliseconds.
constexpr std::int64_t kAnswerMs = 500;
// How long the store has to answer a failing rank. It may live in the very rank that is stopped.
constexpr std::int64_t kStoreMs = 1'000;

std::string join_ranks(const std::vector<std::int32_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += str(i ? ", " : "", ranks[i]);
    return text;
}

}  // namespace

Monitor::Monitor(Config config, std::function<void(const ErrorInfo&)> on_verdict)
    : config_(std::move(config)), on_verdict_(std::move(on_verdict)) {
    thread_ = quiet_thread([this] { loop(); });
    auto& store = *config_.store;
    watches_[0] = store.watch(key("verdict"), [this](std::string value) {
        post([this, value = std::move(value)] { accept(decode_verdict(value)); });
    });
    watches_[1] = store.watch(key("ask"), [this](std::string) {
        post([this] { config_.store->set(key(str("at/", config_.rank)), std::to_string(progress_.load())); });
    });
    watches_[2] = store.watch_connection([this](std::string reason, bool graceful) {
        post([this, reason = std::move(reason), graceful] { connection_lost(reason, graceful); });
    });
    ErrorInfo will{DDP_ERROR_RANK_FAILED,
                   str("rank ", config_.rank, " (", config_.identity,
                       ") died: its connection to the store ended without a goodbye"),
                   config_.rank};
    store.set_will(key("verdict"), encode_verdict(will));
}

Monitor::~Monitor() {
    leave();
    for (auto watch : watches_) config_.store->unwatch(watch);
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Monitor::set_progress(std::int64_t sequence) {
    progress_.store(sequence, std::memory_order_relaxed);
}

ErrorInfo Monitor::report(const ErrorInfo& error) {
    bool gone;
    {
        std::lock_guard lock(mutex_);
        if (!verdict_.ok()) return verdict_;
        gone = store_gone_;
    }
    ErrorInfo agreed = error;
    if (!gone) {
        try {
            agreed = decode_verdict(config_.store->compare_set(key("verdict"), "", encode_verdict(error)));
        } catch (const Error& failure) {
            log(LogLevel::kInfo, "could not tell the other ranks (", failure.what(), "): ", error.message);
        }
    }
    accept(agreed);
    return verdict();
}

ErrorInfo Monitor::adopt(const ErrorInfo& error, bool store_silent) {
    if (store_silent) {
        std::lock_guard lock(mutex_);
        store_gone_ = store_silent_ = true;
    } else if (verdict().ok()) {
        store_is_silent();  // then report() does not wait for it
    }
    return report(error);
}

bool Monitor::store_silent() const {
    std::lock_guard lock(mutex_);
    return store_silent_;
}

ErrorInfo Monitor::resolve(const ErrorInfo& local, const std::string& operation) {
    if (local.code == DDP_ERROR_TIMEOUT) {
        if (store_is_silent()) return blame_store_rank(local, operation);
        return report(blame_for_timeout(local, operation));
    }
    // Another rank's mismatch or own words need no search; a lost connection is often only an echo.
    if (local.code != DDP_ERROR_RANK_FAILED && local.code != DDP_ERROR_ABORTED && local.code != DDP_ERROR_UNAVAILABLE)
        return report(local);
    if (wait_for_verdict(kVerdictMs)) return verdict();
    // The first rank to see the timeout closed its connections, which is all that this one noticed.
    if (store_is_silent()) return blame_store_rank(local, operation);
    return report(blame_for_loss(local));
}

ErrorInfo Monitor::verdict() const {
    std::lock_guard lock(mutex_);
    return verdict_;
}

void Monitor::leave() {
    {
        std::lock_guard lock(mutex_);
        if (left_) return;
        left_ = true;
        if (store_gone_) return;
    }
    if (store_is_silent()) return;
    try {
        config_.store->set(key(str("left/", config_.rank)), config_.identity);
        config_.store->remove_will(key("verdict"));
    } catch (const Error& error) {
        log(LogLevel::kDebug, "leaving group: ", error.what());
    }
}

void Monitor::leave_last(std::int64_t timeout_ms) {
    leave();
    Store::Keys all;
    for (std::int32_t r = 0; r < config_.world; ++r) all.push_back(key(str("left/", r)));
    try {
        config_.store->wait(all, timeout_ms);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "not every rank was told: ", error.what());
    }
}

void Monitor::loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !events_.empty(); });
        if (stopping_) return;
        auto event = std::move(events_.front());
        events_.pop_front();
        lock.unlock();
        try {
            event();
        } catch (const Error& error) {
            log(LogLevel::kDebug, "monitor: ", error.what());  // the store is gone; watch_connection tells
        }
        lock.lock();
    }
}

void Monitor::post(std::function<void()> event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
}

void Monitor::accept(ErrorInfo verdict) {
    {
        std::lock_guard lock(mutex_);
        if (!verdict_.ok()) return;
        verdict_ = verdict;
        changed_.notify_all();
    }
    on_verdict_(verdict);
}

void Monitor::connection_lost(const std::string& reason, bool graceful) {
    bool left;
    {
        std::lock_guard lock(mutex_);
        left = left_;
    }
    // A server that ends on purpose belongs to a rank that is done; whether anybody still needs that rank shows soon
    // enough.
    if (!graceful && !left) accept_loss_of_store(reason);
    // Last, because who waits for a verdict gives up when the store is gone.
    std::lock_guard lock(mutex_);
    store_gone_ = true;
    changed_.notify_all();
}

void Monitor::accept_loss_of_store(const std::string& reason) {
    if (config_.store_rank >= 0)
        accept({DDP_ERROR_RANK_FAILED, str("rank ", config_.store_rank, ", which runs the store, died: ", reason),
                config_.store_rank});
    else
        accept({DDP_ERROR_UNAVAILABLE, str("the job's store is gone (did the launcher end?): ", reason)});
}

bool Monitor::wait_for_verdict(std::int64_t ms) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return !verdict_.ok() || store_gone_; });
    return !verdict_.ok();
}

// True once the store has not answered for a while, though its connection stands: its process is stopped or cut off.
bool Monitor::store_is_silent() {
    {
        std::lock_guard lock(mutex_);
        if (store_gone_) return store_silent_;
    }
    try {
        if (config_.store->answers(kStoreMs)) return false;
    } catch (const Error&) {
        return false;  // lost meanwhile: watch_connection tells
    }
    std::lock_guard lock(mutex_);
    if (!store_gone_) store_gone_ = store_silent_ = true;
    return store_silent_;
}

ErrorInfo Monitor::blame_store_rank(const ErrorInfo& local, const std::string& operation) {
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    verdict.rank = config_.store_rank;
    verdict.message = str(operation, ": ",
                          config_.store_rank < 0 ? std::string("the job's store")
                                                 : str("rank ", config_.store_rank, ", which runs the store,"),
                          " does not answer (stopped, or cut off); ", local.message);
    return report(verdict);  // store_gone_ keeps it from waiting for the store
}

// Asks every rank for its progress. Those that do not answer are stopped or cut off; those that answer with a smaller
// number have not come to this operation yet.
ErrorInfo Monitor::blame_for_timeout(const ErrorInfo& local, const std::string& operation) {
    const std::int64_t mine = progress_.load();
    std::vector<std::int32_t> silent, behind;
    try {
        config_.store->compare_set(key("ask"), "", std::to_string(config_.rank));
        auto answers = Deadline::after_ms(kAnswerMs);
        for (std::int32_t r = 0; r < config_.world; ++r) {
            if (r == config_.rank) continue;
            auto answer_key = key(str("at/", r));
            auto left = answers.remaining_ms();
            try {
                auto answer = config_.store->get(answer_key, left > 0 ? left : -1);
                if (parse_int(answer, 0, INT64_MAX, answer_key) < mine) behind.push_back(r);
            } catch (const Error& error) {
                if (error.info().code != DDP_ERROR_TIMEOUT && error.info().code != DDP_ERROR_NOT_FOUND) throw;
                silent.push_back(r);
            }
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not ask the other ranks: ", error.what());
    }
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    if (!silent.empty()) {
        verdict.rank = silent.front();
        verdict.message = str(operation, ": ", join_ranks(silent), silent.size() == 1 ? " does" : " do",
                              " not answer (stopped, or cut off from the store); ", local.message);
    } else if (!behind.empty()) {
        verdict.rank = behind.front();
        verdict.message = str(operation, ": ", join_ranks(behind), behind.size() == 1 ? " is" : " are",
                              " alive but did not get there; ", local.message);
    } else {
        verdict.message = str(operation, ": ", local.message);
    }
    return verdict;
}

// Nobody wrote a verdict. Either a rank left in good order while others still needed it, or the network failed.
ErrorInfo Monitor::blame_for_loss(const ErrorInfo& local) {
    ErrorInfo verdict = local;
    bool gone;
    {
        std::lock_guard lock(mutex_);
        gone = store_gone_;
    }
    if (gone && config_.store_rank >= 0) {
        verdict.code = DDP_ERROR_RANK_FAILED;
        verdict.rank = config_.store_rank;
        verdict.message = str("rank ", config_.store_rank, " left the group while rank ", config_.rank,
                              " still needed it; ", local.message);
        return verdict;
    }
    try {
        for (auto& name : config_.store->list_keys(key("left/"))) {
            auto rank =
                static_cast<std::int32_t>(parse_int(name.substr(key("left/").size()), 0, config_.world - 1, name));
            verdict.code = DDP_ERROR_RANK_FAILED;
            verdict.rank = rank;
            verdict.message =
                str("rank ", rank, " left the group while rank ", config_.rank, " still needed it; ", local.message);
            return verdict;
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not look for ranks that left: ", error.what());
    }
    return verdict;
}

}  // namespace libddp
