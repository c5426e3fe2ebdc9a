#include "comm/monitor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/blame.h"
#include "comm/verdict.h"
#include "util/interrupt.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long a failed transport waits for the verdict before it looks for the cause itself. Verdicts
// take milliseconds.
constexpr std::int64_t kVerdictMs = 1'000;
// How long a rank whose program wants to end a wait takes to tell the others.
constexpr std::int64_t kBrieflyMs = 150;
// How long the store has to answer a failing rank. It may live in the very rank that is stopped.
constexpr std::int64_t kStoreMs = 1'000;
// How long after a death the store stays for the rank that is said to have died: it may only have
// been cut off from the store.
constexpr std::int64_t kCutOffMs = 1'000;

}  // namespace

Monitor::Monitor(Config config, std::function<void(const ErrorInfo&)> on_verdict)
    : config_(std::move(config)),
      on_verdict_(std::move(on_verdict)),
      claim_(config_),
      thread_(config_.recorder) {}

void Monitor::start() {
    const interrupt::Off off;  // bounded, and a rank is taken whole or not at all
    claim_.take();
    auto& store = *config_.store;
    watches_.push_back(store.watch(config_.key(group_keys::kVerdict), [this](std::string value) {
        thread_.post([this, value = std::move(value)] { accept(decode_verdict(value)); });
    }));
    watches_.push_back(store.watch(config_.key(group_keys::kAsk),
                                   [this](std::string) { thread_.post([this] { answer(); }); }));
    watches_.push_back(store.watch_connection([this](std::string reason, bool graceful) {
        raise(Event::kConnectionEnded);
        thread_.post(
            [this, reason = std::move(reason), graceful] { connection_ended(reason, graceful); });
    }));
    watches_.push_back(store.watch(config_.key(group_keys::kEnded), [this](std::string value) {
        const Lock lock(mutex_);
        ended_ = decode_verdict(value);
    }));
    others_.emplace(static_cast<OneOfGroups&>(*this));
    at_exit_.emplace([this](int status, const Deadline& deadline) { say_exit(status, deadline); });
    // Last, as what throws before must leave no thread behind.
    thread_.start();
    raise(Event::kStarted);
}

Monitor::~Monitor() {
    leave();
    for (const auto watch : watches_) config_.store->unwatch(watch);
    thread_.stop();
    others_.reset();
    const interrupt::Off off;
    if (raise(Event::kEnd) == Action::kLetGo) claim_.let_go();
}

// Moves to the next state. The caller does what the table says.
MonitorAction Monitor::raise(Event event) {
    const Lock lock(mutex_);
    const Reaction reaction = react(state_, event);
    state_ = reaction.state;
    changed_.notify_all();
    return reaction.action;
}

void Monitor::other_broke(const std::string& story) {
    const Lock lock(mutex_);
    if (verdict_.ok() && other_broke_.empty()) other_broke_ = story;
}

void Monitor::accept(ErrorInfo verdict) {
    {
        const Lock lock(mutex_);
        const Reaction reaction = react(state_, Event::kVerdict);
        if (reaction.action != Action::kAnnounce) return;
        state_ = reaction.state;
        // The ranks that are in both groups then say the same.
        if (may_be_an_echo(verdict.code) && !other_broke_.empty() &&
            verdict.message.find(other_broke_) == std::string::npos)
            verdict.message += str("; see also: ", other_broke_);
        verdict_ = verdict;
        verdict_stays_ = Deadline::after_ms(kCutOffMs);
        changed_.notify_all();
    }
    if (others_ && !config_.goes_on) others_->tell_others(verdict);
    on_verdict_(verdict);
}

ErrorInfo Monitor::report(const ErrorInfo& error) {
    const Action action = raise(Event::kReport);
    if (action != Action::kTakeVerdict) accept(action == Action::kWrite ? agree_on(error) : error);
    return verdict();
}

ErrorInfo Monitor::report_briefly(const ErrorInfo& error) {
    if (raise(Event::kReport) == Action::kTakeVerdict) return verdict();
    thread_.post(
        [this, error] { accept(raise(Event::kTell) == Action::kWrite ? agree_on(error) : error); });
    {
        Lock lock(mutex_);
        changed_.wait_until(lock, Deadline::after_ms(kBrieflyMs).at(),
                            [this]() DDP_REQUIRES(mutex_) { return !may_hear(state_); });
    }
    accept(error);
    return verdict();
}

ErrorInfo Monitor::adopt(const ErrorInfo& error, bool store_silent) {
    if (store_silent) raise(Event::kStoreSilent);
    if (error.code != DDP_ERROR_INTERRUPTED) return report(error);
    // The program has waited in the other group already.
    thread_.post([this, error] {
        if (raise(Event::kTell) == Action::kWrite) agree_on(error);
    });
    accept(error);
    return verdict();
}

// Writes the verdict into the store unless there is one; returns the one that stands. At most
// kStoreMs where the store is silent: it may still read it later, before it sees that this rank has
// gone.
ErrorInfo Monitor::agree_on(const ErrorInfo& error) {
    const interrupt::Off off;
    const std::string key = config_.key(group_keys::kVerdict);
    try {
        const auto store = config_.store->bounded(kStoreMs);
        // A process that has no rank has no say, and may have come too late.
        return decode_verdict(claim_.taken() ? store->compare_set(key, "", encode_verdict(error))
                                             : store->get(key, -1));
    } catch (const Error& failure) {
        if (failure.info().code == DDP_ERROR_TIMEOUT) {
            raise(Event::kStoreSilent);
            return error;
        }
        // The store may have ended with a rank that has agreed already. Its last message counts.
        if (!on_own_thread()) wait_for_verdict(kVerdictMs);
        if (auto known = verdict(); !known.ok()) return known;
        log(LogLevel::kInfo, "could not tell the other ranks (", failure.what(),
            "): ", error.message);
        return error;
    }
}

ErrorInfo Monitor::resolve(const ErrorInfo& local, const std::string& operation,
                           const std::string& advice) {
    // Another rank's mismatch or own words need no search; a lost connection is often only an echo.
    if (!may_be_an_echo(local.code)) return report(local);
    const interrupt::Off off;  // bounded, and what it finds out is worth more
    const bool timeout = local.code == DDP_ERROR_TIMEOUT;
    const auto blame = [&] {
        const Lock lock(mutex_);
        const bool store_gone = state_ == MonitorState::kGone;
        return Blame{config_,           local,      operation,   advice,
                     progress_.begun(), store_gone, other_broke_};
    };
    Event event = timeout ? Event::kTimedOut : Event::kTransportFailed;
    Action action = raise(event);
    while (action == Action::kWait || action == Action::kLookAtStore) {
        if (action == Action::kWait) {
            wait_for_verdict(kVerdictMs);
            event = event == Event::kStoreLost ? Event::kWaitedForLoss : Event::kWaited;
        } else {
            event = look_at_store();
        }
        action = raise(event);
    }
    if (action == Action::kExplainLoss) explain_loss(local.message);
    // The first rank to see the timeout closed its connections, which may be all that this one
    // noticed.
    else if (action == Action::kBlameStore)
        report(blame().silent_store());
    else if (action == Action::kBlameRanks)
        report(timeout ? blame().for_timeout()
                       : blame().for_loss([this](std::int64_t ms) { wait_for_verdict(ms); }));
    return verdict();
}

void Monitor::wait_for_verdict(std::int64_t ms) {
    Lock lock(mutex_);
    const auto decided = [this]() DDP_REQUIRES(mutex_) { return !may_hear(state_); };
    if (!changed_.wait_until(lock, Deadline::after_ms(ms).at(), decided) &&
        state_ == MonitorState::kLosing)
        changed_.wait_until(lock, Deadline::after_ms(kStoreMs + kVerdictMs).at(), decided);
}

MonitorEvent Monitor::look_at_store() {
    try {
        return config_.store->answers(kStoreMs) ? Event::kStoreAnswers : Event::kStoreSilent;
    } catch (const Error&) {
        return Event::kStoreLost;
    }
}

ErrorInfo Monitor::verdict() const {
    const Lock lock(mutex_);
    return verdict_;
}

bool Monitor::store_silent() const {
    const Lock lock(mutex_);
    return is_silent(state_);
}

void Monitor::answer() {
    if (raise(Event::kAsked) != Action::kAnswer) return;
    config_.store->set(config_.key(group_keys::answer(config_.rank)),
                       str(progress_.begun(), " ", others_ ? others_->under_way_elsewhere() : ""));
}

// A server that ends on purpose belongs to a rank that is done; whether anybody still needs that
// rank shows soon enough.
void Monitor::connection_ended(const std::string& reason, bool graceful) {
    if (!graceful && !claim_.leaving() && raise(Event::kConnectionLost) == Action::kExplainLoss)
        explain_loss(reason);
    // Last, because a rank that waits for a verdict gives up when the store is gone.
    raise(Event::kStoreGone);
}

// Either the store has ended, or something between it and this rank cut the connection.
void Monitor::explain_loss(const std::string& reason) {
    ErrorInfo ended;
    {
        const Lock lock(mutex_);
        ended = ended_;
    }
    if (ended.ok() || ended.rank != config_.store_rank) {
        try {
            const auto again = config_.store->reconnect(kStoreMs);
            return accept(claim_.after_a_cut(*again, reason, progress_.begun()));
        } catch (const Error& error) {
            log(LogLevel::kDebug, "the store is not there again: ", error.what());
        }
    }
    if (!ended.ok())
        accept(ended);
    else if (config_.store_rank >= 0)
        accept({DDP_ERROR_RANK_FAILED,
                str("rank ", config_.store_rank, ", which runs the store, died: ", reason),
                config_.store_rank});
    else
        accept({DDP_ERROR_UNAVAILABLE,
                str("the job's store is gone (did the launcher end?): ", reason)});
}

void Monitor::leave() {
    const interrupt::Off off;
    if (!claim_.begin_to_leave() || !claim_.taken() || raise(Event::kLeave) != Action::kSayGoodbye)
        return;
    at_exit_.reset();  // it may be about to replace the will that is taken back below
    const Event store = look_at_store();
    raise(store);
    if (store != Event::kStoreAnswers) return;
    Lock lock(mutex_);
    const std::string why = verdict_.ok() ? other_broke_ : "";
    lock.unlock();
    claim_.say_goodbye(progress_.begun(), why);
    lock.lock();
    const ErrorInfo verdict = verdict_;
    const Deadline stays = verdict_stays_;
    lock.unlock();
    claim_.let_a_cut_off_rank_read(verdict, stays);
}

void Monitor::leave_last(std::int64_t timeout_ms) {
    const interrupt::Off off;
    leave();
    Store::Keys all;
    for (std::int32_t r = 0; r < config_.world; ++r)
        all.push_back(config_.key(group_keys::left(r)));
    try {
        config_.store->wait(all, timeout_ms);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "not every rank was told: ", error.what());
    }
}

void Monitor::say_exit(int status, const Deadline& deadline) {
    if (claim_.leaving()) return;
    const Action action = raise(Event::kExit);
    Lock lock(mutex_);
    const ErrorInfo verdict = verdict_;
    const std::string why = other_broke_;
    lock.unlock();
    if (action == Action::kSayExit) claim_.say_exit(status, why, deadline);
    if (action != Action::kTellWatchers || config_.store_rank != config_.rank) return;
    // When the store answers, it has told those who watch.
    const auto store = config_.store->bounded(std::max<std::int64_t>(deadline.remaining_ms(), 1));
    const std::string key = config_.key(group_keys::kVerdict);
    store->compare_set(key, "", encode_verdict(verdict));  // one that stands only here, so far
    store->answers(std::max<std::int64_t>(deadline.remaining_ms(), 1));
}

}  // namespace libddp
