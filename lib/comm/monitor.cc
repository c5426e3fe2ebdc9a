#include "comm/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>

#include "util/deadline.h"
#include "util/host.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/options.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// How long a failed transport waits for the verdict before it looks for the cause itself. Verdicts take milliseconds.
constexpr std::int64_t kVerdictMs = 1'000;
// How long ranks, and the store, have to answer when somebody asks after a timeout. A live process answers in milliseconds.
constexpr std::int64_t kAnswerMs = 500;
// How long a rank whose program wants to end a wait takes to tell the others.
constexpr std::int64_t kBrieflyMs = 150;
// How long the store has to answer a failing rank. It may live in the very rank that is stopped.
constexpr std::int64_t kStoreMs = 1'000;
// How long after a death the store stays for the rank that is said to have died: it may only have been cut off from the store.
constexpr std::int64_t kCutOffMs = 1'000;

// Reads the progress that ranks write about themselves, "PROGRESS TEXT".
std::int64_t progress_in(const std::string& value, const std::string& name) {
    return parse_int(value.substr(0, value.find(' ')), 0, INT64_MAX, name);
}
std::string text_in(const std::string& value) {
    const auto space = value.find(' ');
    return space == std::string::npos ? "" : value.substr(space + 1);
}

}  // namespace

std::string encode_verdict(const ErrorInfo& e) {
    return str(e.code, " ", e.rank, " ", e.param, " ", e.bucket, " ", e.step, " ", e.message);
}

ErrorInfo decode_verdict(std::string_view text) {
    const std::string_view whole = text;
    bool good = true;
    auto number = [&](auto& value) {
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        good = good && code == std::errc() && end != text.data() + text.size() && *end == ' ';
        if (good) text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
    };
    ErrorInfo e;
    number(e.code);
    number(e.rank);
    number(e.param);
    number(e.bucket);
    number(e.step);
    if (!good || e.code >= DDP_OK)
        return {DDP_ERROR_INTERNAL, str("the store holds a malformed verdict: '", whole, "'")};
    e.message = text;
    return e;
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
    constexpr std::size_t kShown = 20;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) text += str(i ? ", " : "", ranks[i]);
    return ranks.size() > kShown ? str(text, " and ", ranks.size() - kShown, " more") : text;
}

std::string left_key(std::int32_t rank) {
    return str("left/", rank);
}

std::string process_text() {
    return str("pid ", getpid(), " on ", host_name());
}

ErrorInfo could_not_join(std::int32_t rank, const std::string& group, ErrorInfo error) {
    error.rank = rank;
    error.message = str("rank ", rank, " (", process_text(), ") could not join group '", group, "': ", error.message);
    return error;
}

ErrorInfo on_rank(std::int32_t rank, ErrorInfo error) {
    if (error.rank >= 0) return error;
    error.rank = rank;
    error.message = str("rank ", rank, ": ", error.message);
    return error;
}

Monitor::Monitor(Config config, std::function<void(const ErrorInfo&)> on_verdict)
    : config_(std::move(config)), on_verdict_(std::move(on_verdict)) {}

void Monitor::start() {
    const interrupt::Off off;  // bounded, and a rank is taken whole or not at all
    claim_rank();
    auto& store = *config_.store;
    watches_[0] = store.watch(key(kVerdictKey), [this](std::string value) {
        post([this, value = std::move(value)] { accept(decode_verdict(value)); });
    });
    watches_[1] = store.watch(key("ask"), [this](std::string) {
        post([this] {
            config_.store->set(key(str("at/", config_.rank)),
                               str(progress_.load(), " ", others_ ? others_->under_way_elsewhere() : ""));
        });
    });
    watches_[2] = store.watch_connection([this](std::string reason, bool graceful) {
        {
            std::lock_guard lock(mutex_);
            losing_ = true;
        }
        post([this, reason = std::move(reason), graceful] { connection_lost(reason, graceful); });
    });
    watches_[3] = store.watch(key("ended"), [this](std::string value) {
        const std::lock_guard lock(mutex_);
        ended_ = decode_verdict(value);
    });
    others_.emplace(static_cast<OneOfGroups&>(*this));
    at_exit_.emplace([this](int status, const Deadline& deadline) { say_exit(status, deadline); });
    // Last, as what throws before must leave no thread behind.
    thread_ = quiet_thread([this] { loop(); });
}

// The will comes first: whatever ends this process from here on, the others hear of it. It is void while another process
// has the rank.
void Monitor::claim_rank() {
    auto& store = *config_.store;
    const std::string mine = str(config_.identity, " #", std::random_device{}());
    const auto taken_by = [&](const std::string& holder) {
        throw Error(
            ErrorInfo{DDP_ERROR_ALREADY_EXISTS,
                      str("rank ", config_.rank, " of group '", config_.group, "' at ", store.describe(),
                          " is taken already by ", holder.substr(0, holder.find(" #")), ": start each rank once"),
                      config_.rank});
    };
    // Ranks that are threads of one process share a connection, and so the will of one that is there already.
    if (store.check({rank_key(config_.rank)})) taken_by(store.get(rank_key(config_.rank)));
    ErrorInfo will{
        DDP_ERROR_RANK_FAILED,
        str("rank ", config_.rank, " (", config_.identity,
            ") died: its connection to the store ended without a goodbye (killed, crashed, _exit, or cut off)"),
        config_.rank};
    store.set_will(key(kVerdictKey), encode_verdict(will), rank_key(config_.rank), mine);
    const std::string holder = store.compare_set(rank_key(config_.rank), "", mine);
    if (holder != mine) {
        store.remove_will(key(kVerdictKey));
        taken_by(holder);
    }
    std::lock_guard lock(mutex_);
    claimed_ = true;
}

Monitor::~Monitor() {
    leave();
    for (auto watch : watches_)
        if (watch != 0) config_.store->unwatch(watch);
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    others_.reset();
    let_go_of_keys();
}

// This rank reads none of the group's keys any more. The last to say so removes them. A rank that died never does: then they stay.
// If the last rank dies on the way, the keys that claim ranks are still there: they keep everybody out who would find the others.
void Monitor::let_go_of_keys() {
    const interrupt::Off off;
    if (!claimed_ || store_gone_) return;  // the thread has ended
    const auto bounded = [&] { return config_.store->bounded(std::max<std::int64_t>(leaves_by_.remaining_ms(), 1)); };
    try {
        if (bounded()->add(key("let_go"), 1) < config_.world) return;
        Store::Keys names = bounded()->list_keys(config_.prefix);
        std::erase_if(names, [&](const std::string& name) { return name.starts_with(key(kKeysOfParts)); });
        std::partition(names.begin(), names.end(),
                       [&](const std::string& name) { return !name.starts_with(key(kClaims)); });
        for (const std::string& name : names) bounded()->remove(name);
    } catch (const std::exception& error) {
        log(LogLevel::kDebug, "keys of group '", config_.group, "' stay in the store: ", error.what());
    }
}

void Monitor::begins(const Signature& operation) {
    {
        const std::lock_guard lock(operation_mutex_);
        operation_ = operation;
    }
    progress_.store(operation.sequence + 1, std::memory_order_relaxed);
}

void Monitor::ends() {
    ended_operations_.store(progress_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

std::string Monitor::under_way() const {
    const std::lock_guard lock(operation_mutex_);
    return ended_operations_ < progress_ ? describe(operation_) : "";
}

void Monitor::other_broke(const std::string& story) {
    const std::lock_guard lock(mutex_);
    if (verdict_.ok() && other_broke_.empty()) other_broke_ = story;
}

ErrorInfo Monitor::report(const ErrorInfo& error) {
    if (auto known = verdict(); !known.ok()) return known;
    accept(agree_on(error));
    return verdict();
}

ErrorInfo Monitor::report_briefly(const ErrorInfo& error) {
    if (auto known = verdict(); !known.ok()) return known;
    post([this, error] { accept(agree_on(error)); });
    {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(kBrieflyMs), [this] { return nothing_to_wait_for(); });
    }
    accept(error);
    return verdict();
}

// Writes the verdict into the store unless there is one; returns the one that stands. At most kStoreMs where the store is silent: it
// may still read it later, before it sees that this rank has gone.
ErrorInfo Monitor::agree_on(const ErrorInfo& error) {
    const interrupt::Off off;
    bool may_tell, gone;
    {
        std::lock_guard lock(mutex_);
        if (store_silent_) return error;
        may_tell = claimed_;  // who has no rank has no say, and may have come too late
        gone = store_gone_;
    }
    try {
        if (gone) fail(DDP_ERROR_UNAVAILABLE, "the store has gone");
        const auto store = config_.store->bounded(kStoreMs);
        return decode_verdict(may_tell ? store->compare_set(key(kVerdictKey), "", encode_verdict(error))
                                       : store->get(key(kVerdictKey), -1));
    } catch (const Error& failure) {
        if (failure.info().code == DDP_ERROR_TIMEOUT) {
            note_silence();
            return error;
        }
        // The store may have ended with a rank that has agreed already. Its last message counts.
        if (!on_own_thread() && wait_for_verdict(kVerdictMs)) return verdict();
        log(LogLevel::kInfo, "could not tell the other ranks (", failure.what(), "): ", error.message);
        return error;
    }
}

ErrorInfo Monitor::adopt(const ErrorInfo& error, bool store_silent) {
    if (store_silent) {
        std::lock_guard lock(mutex_);
        store_gone_ = store_silent_ = true;
    }
    if (error.code != DDP_ERROR_INTERRUPTED) return report(error);
    // The program has waited in the other group already.
    post([this, error] { agree_on(error); });
    accept(error);
    return verdict();
}

bool Monitor::store_gone() const {
    std::lock_guard lock(mutex_);
    return store_gone_;
}

bool Monitor::store_silent() const {
    std::lock_guard lock(mutex_);
    return store_silent_;
}

ErrorInfo Monitor::resolve(const ErrorInfo& local, const std::string& operation, const std::string& advice) {
    if (auto known = verdict(); !known.ok()) return known;
    const interrupt::Off off;  // bounded, and what it finds out is worth more
    const bool timeout = local.code == DDP_ERROR_TIMEOUT;
    // Another rank's mismatch or own words need no search; a lost connection is often only an echo.
    if (!may_be_an_echo(local.code)) return report(local);
    if (!timeout && wait_for_verdict(kVerdictMs)) return verdict();
    switch (look_at_store()) {
        case Service::kLost:
            if (wait_for_verdict(kVerdictMs)) return verdict();
            if (!store_gone()) {  // nobody watches the connection yet
                accept_loss_of_store(local.message);
                return verdict();
            }
            break;
        case Service::kSilent:
            // The first rank to see the timeout closed its connections, which may be all that this one noticed.
            return blame_store_rank(local, operation);
        case Service::kGone:
        case Service::kAnswers:
            break;
    }
    return report(timeout ? blame_for_timeout(local, operation, advice) : blame_for_loss(local, operation, advice));
}

ErrorInfo Monitor::verdict() const {
    std::lock_guard lock(mutex_);
    return verdict_;
}

void Monitor::leave() {
    const interrupt::Off off;
    std::string why;
    {
        std::lock_guard lock(mutex_);
        if (left_) return;
        left_ = true;
        leaves_by_ = Deadline::after_ms(kStoreMs);
        if (store_gone_ || !claimed_) return;
        if (verdict_.ok()) why = other_broke_;
    }
    at_exit_.reset();  // it may be about to replace the will that is taken back below
    if (look_at_store() != Service::kAnswers) return;
    try {
        const auto store = config_.store->bounded(std::max<std::int64_t>(leaves_by_.remaining_ms(), 1));
        store->set(key(left_key(config_.rank)), str(progress_.load(), " ", why));
        store->remove_will(key(kVerdictKey));
    } catch (const Error& error) {
        log(LogLevel::kDebug, "leaving group: ", error.what());
    }
    let_a_cut_off_rank_read(leaves_by_);
}

// The store ends with this process's group. A rank that was cut off from it would take that for the death of this one.
void Monitor::let_a_cut_off_rank_read(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    if (config_.store_rank != config_.rank || verdict_.code != DDP_ERROR_RANK_FAILED || verdict_.rank == config_.rank)
        return;
    const auto dead = verdict_.rank;
    const auto stays_ms = std::min(verdict_stays_.remaining_ms(), deadline.remaining_ms());
    lock.unlock();
    try {
        if (stays_ms > 0) config_.store->wait({key(left_key(dead))}, stays_ms);
    } catch (const Error& error) {
        log(LogLevel::kDebug, "rank ", dead, " has not read the verdict: ", error.what());
    }
}

// A store in this process ends with it. The others hear the verdict first: when the store answers, it has told those who watch.
void Monitor::tell_before_the_end(const ErrorInfo& verdict, const Deadline& deadline) {
    if (config_.store_rank != config_.rank) return;
    const auto store = config_.store->bounded(std::max<std::int64_t>(deadline.remaining_ms(), 1));
    store->compare_set(key(kVerdictKey), "", encode_verdict(verdict));  // one that stands only here, so far
    store->answers(std::max<std::int64_t>(deadline.remaining_ms(), 1));
}

// The process exits and has not left. Whether anybody needs it is not known: it becomes the verdict, as a death does, when the
// connection ends.
void Monitor::say_exit(int status, const Deadline& deadline) {
    ErrorInfo verdict;
    std::string why;
    {
        std::lock_guard lock(mutex_);
        if (left_ || store_gone_) return;
        verdict = verdict_;
        why = other_broke_;
    }
    if (!verdict.ok()) return tell_before_the_end(verdict, deadline);
    auto& store = *config_.store;
    if (!store.answers(deadline.remaining_ms())) return;
    const std::string ended = encode_verdict(
        {DDP_ERROR_RANK_FAILED,
         str(why, why.empty() ? "" : ", and ", "rank ", config_.rank, " (", config_.identity,
             ") ended: its process exited with status ", status, " and had not left the group (ddp_group_free)",
             status == 0 && why.empty() ? kUnevenInputs : ""),
         config_.rank});
    store.set_will(key(kVerdictKey), ended);
    // The will ends with the store, which may be in this process. The second answer comes when the server has told those who watch.
    store.set(key("ended"), ended);
    store.answers(deadline.remaining_ms());
}

void Monitor::leave_last(std::int64_t timeout_ms) {
    const interrupt::Off off;
    leave();
    Store::Keys all;
    for (std::int32_t r = 0; r < config_.world; ++r) all.push_back(key(left_key(r)));
    try {
        config_.store->wait(all, timeout_ms);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "not every rank was told: ", error.what());
    }
}

// Between events it says that this process runs.
void Monitor::wait_for_event(std::unique_lock<std::mutex>& lock) {
    const auto woken = [this] { return stopping_ || !events_.empty(); };
    if (!config_.recorder) return changed_.wait(lock, woken);
    while (!changed_.wait_for(lock, record::kHeartbeat, woken)) config_.recorder.beat(false);
}

void Monitor::loop() {
    config_.recorder.beat(true);
    std::unique_lock lock(mutex_);
    for (;;) {
        wait_for_event(lock);
        config_.recorder.beat(false);
        if (stopping_) return;
        auto event = std::move(events_.front());
        events_.pop_front();
        lock.unlock();
        try {
            event();
        } catch (...) {
            log(LogLevel::kDebug, "monitor: ", caught().message);  // the store is gone; watch_connection tells
        }
        config_.recorder.beat(true);  // the event may have waited for the store: that is no standstill
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

// Either the store has ended, or something between it and this rank cut the connection.
void Monitor::accept_loss_of_store(const std::string& reason) {
    ErrorInfo ended;
    {
        std::lock_guard lock(mutex_);
        ended = ended_;
    }
    if (ended.ok() || ended.rank != config_.store_rank) {
        try {
            const auto again = config_.store->reconnect(kStoreMs);
            return accept(verdict_on_lost_connection(*again, reason));
        } catch (const Error& error) {
            log(LogLevel::kDebug, "the store is not there again: ", error.what());
        }
    }
    if (!ended.ok())
        accept(ended);
    else if (config_.store_rank >= 0)
        accept({DDP_ERROR_RANK_FAILED, str("rank ", config_.store_rank, ", which runs the store, died: ", reason),
                config_.store_rank});
    else
        accept({DDP_ERROR_UNAVAILABLE, str("the job's store is gone (did the launcher end?): ", reason)});
}

// The store has taken this rank for dead then, or soon will: all ranks say what it says. If it ends in the middle of this, it has still
// outlived the connection, and the loss is this rank's.
ErrorInfo Monitor::verdict_on_lost_connection(Store& again, const std::string& reason) {
    ErrorInfo verdict{DDP_ERROR_RANK_FAILED,
                      str("rank ", config_.rank, " (", config_.identity, ") lost its connection to the store at ",
                          again.describe(), ", which still runs: ", reason),
                      config_.rank};
    {
        std::lock_guard lock(mutex_);
        if (!claimed_) return verdict;
    }
    try {
        verdict = stored_verdict(again, verdict);
        again.set(key(left_key(config_.rank)),
                  std::to_string(progress_.load()));  // the store's process waits for it
    } catch (const Error& error) {
        log(LogLevel::kDebug, "the store ended soon after: ", error.what());
    }
    return verdict;
}

// Waits for the verdict that the end of the lost connection writes into the store; without one, writes this rank's.
ErrorInfo Monitor::stored_verdict(Store& store, const ErrorInfo& mine) const {
    try {
        return decode_verdict(store.get(key(kVerdictKey), kVerdictMs));
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return decode_verdict(store.compare_set(key(kVerdictKey), "", encode_verdict(mine)));
    }
}

bool Monitor::wait_for_verdict(std::int64_t ms) {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) return !verdict_.ok();  // start() has failed: nobody listens for one
    const auto known = [this] { return nothing_to_wait_for(); };
    if (!changed_.wait_for(lock, std::chrono::milliseconds(ms), known) && losing_)
        changed_.wait_for(lock, std::chrono::milliseconds(kStoreMs + kVerdictMs), known);
    return !verdict_.ok();
}

// kSilent: it has not answered for a while, though its connection stands: its process is stopped or cut off.
Monitor::Service Monitor::look_at_store() {
    {
        std::lock_guard lock(mutex_);
        if (store_gone_) return store_silent_ ? Service::kSilent : Service::kGone;
    }
    try {
        if (config_.store->answers(kStoreMs)) return Service::kAnswers;
    } catch (const Error&) {
        return Service::kLost;
    }
    return note_silence();
}

Monitor::Service Monitor::note_silence() {
    std::lock_guard lock(mutex_);
    if (!store_gone_) store_gone_ = store_silent_ = true;
    return store_silent_ ? Service::kSilent : Service::kGone;
}

ErrorInfo Monitor::blame_store_rank(const ErrorInfo& local, const std::string& operation) {
    ErrorInfo verdict = local;
    if (config_.store_rank == config_.rank) {
        verdict.message = str(operation, " on rank ", config_.rank, ": ", local.message,
                              "; the store, which this process runs, does not answer either");
        return report(verdict);
    }
    verdict.code = DDP_ERROR_TIMEOUT;
    verdict.rank = config_.store_rank;
    verdict.message = str(operation, ": ",
                          config_.store_rank < 0 ? std::string("the job's store")
                                                 : str("rank ", config_.store_rank, ", which runs the store,"),
                          " does not answer (stopped, or cut off); ", local.message);
    return report(verdict);  // store_gone_ keeps it from waiting for the store
}

std::vector<std::int32_t> Monitor::ranks_that_left() const {
    std::vector<std::int32_t> left;
    for (const auto& name : config_.store->list_keys(key("left/")))
        left.push_back(
            static_cast<std::int32_t>(parse_int(name.substr(key("left/").size()), 0, config_.world - 1, name)));
    std::sort(left.begin(), left.end());
    return left;
}

// Asks every rank for its progress. Ranks that do not answer are stopped or cut off; those that answer with a smaller
// number have not come to this operation yet. Ranks that left do not answer, but wrote how far they had come.
Monitor::Answers Monitor::ask_everyone() {
    const std::int64_t mine = progress_.load();
    Answers found;
    try {
        config_.store->compare_set(key("ask"), "", std::to_string(config_.rank));
        const auto left = ranks_that_left();
        auto answers = Deadline::after_ms(kAnswerMs);
        for (std::int32_t r = 0; r < config_.world; ++r) {
            if (r == config_.rank) continue;
            if (std::find(left.begin(), left.end(), r) != left.end()) {
                const auto name = key(left_key(r));
                if (progress_in(config_.store->get(name, -1), name) < mine) found.left.push_back(r);
                continue;
            }
            auto answer_key = key(str("at/", r));
            auto rest_ms = answers.remaining_ms();
            try {
                const auto answer = config_.store->get(answer_key, rest_ms > 0 ? rest_ms : -1);
                if (progress_in(answer, answer_key) >= mine) continue;
                if (found.behind.empty()) found.elsewhere = text_in(answer);
                found.behind.push_back(r);
            } catch (const Error& error) {
                if (error.info().code != DDP_ERROR_TIMEOUT && error.info().code != DDP_ERROR_NOT_FOUND) throw;
                found.silent.push_back(r);
            }
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not ask the other ranks: ", error.what());
    }
    return found;
}

ErrorInfo Monitor::blame_silent(const std::vector<std::int32_t>& silent, const ErrorInfo& local,
                                const std::string& operation) {
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    verdict.rank = silent.front();
    verdict.message = str(operation, ": ", ranks_text(silent), silent.size() == 1 ? " does" : " do",
                          " not answer (stopped, or cut off from the store); ", local.message);
    return verdict;
}

ErrorInfo Monitor::blame_for_timeout(const ErrorInfo& local, const std::string& operation, const std::string& advice) {
    const auto [silent, behind, left, elsewhere] = ask_everyone();
    if (!left.empty()) return left_too_early(left, local, operation, advice);
    if (!silent.empty()) return blame_silent(silent, local, operation);
    ErrorInfo verdict = local;
    verdict.code = DDP_ERROR_TIMEOUT;
    if (!behind.empty()) {
        const std::string in_group = elsewhere.empty() ? "" : str(" in group '", config_.group, "'");
        verdict.rank = behind.front();
        verdict.message = str(operation, in_group, ": ", ranks_text(behind), behind.size() == 1 ? " is" : " are",
                              " alive but did not get there",
                              elsewhere.empty() ? ""
                                                : str(": rank ", behind.front(), " is at ", elsewhere,
                                                      ", so the ranks use their groups in a different order"),
                              "; ", local.message, elsewhere.empty() ? advice : "");
    } else {
        verdict.message = str(operation, ": ", local.message);
    }
    return verdict;
}

// Nobody wrote a verdict. Either a rank left in good order while others still needed it, or one is stopped, or the network
// failed.
ErrorInfo Monitor::blame_for_loss(const ErrorInfo& local, const std::string& operation, const std::string& advice) {
    if (store_gone() && config_.store_rank >= 0) return left_too_early({config_.store_rank}, local, operation, advice);
    try {
        const auto left = ranks_that_left();
        if (!left.empty()) return left_too_early(left, local, operation, advice);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not look for ranks that left: ", error.what());
    }
    // A rank that gave up first looks as if it had gone; the cause is the one that it gave up on.
    const auto silent = ask_everyone().silent;
    if (!silent.empty()) {
        // A store with leases learns of a death later than a connection between ranks ends.
        const std::int64_t notices_ms = config_.store->notices_death_ms();
        if (notices_ms > 0 && wait_for_verdict(notices_ms)) return verdict();
        return blame_silent(silent, local, operation);
    }
    ErrorInfo verdict = local;
    verdict.message = str(operation, " on rank ", config_.rank, ": ", local.message);
    return verdict;
}

// The error that broke another group of a rank that left; empty: nothing.
std::string Monitor::why_they_left(const std::vector<std::int32_t>& ranks) const {
    try {
        for (const std::int32_t rank : ranks) {
            if (store_gone()) break;
            const std::string why = text_in(config_.store->get(key(left_key(rank)), -1));
            if (!why.empty()) return why;
        }
    } catch (const Error& error) {
        log(LogLevel::kInfo, "could not read why ranks left: ", error.what());
    }
    const std::lock_guard lock(mutex_);
    return other_broke_;
}

ErrorInfo Monitor::left_too_early(const std::vector<std::int32_t>& ranks, ErrorInfo local, const std::string& operation,
                                  const std::string& advice) const {
    const bool own = std::find(ranks.begin(), ranks.end(), config_.rank) != ranks.end();
    local.code = DDP_ERROR_RANK_FAILED;
    local.rank = own ? config_.rank : ranks.front();
    if (own) {
        local.message = str("rank ", config_.rank, " left the group before its ", operation,
                            " had ended; wait for each work before you free the group");
        return local;
    }
    const std::string why = why_they_left(ranks);
    local.message = str(why, why.empty() ? "" : ", and ", ranks_text(ranks),
                        why.empty() ? " left the group" : str(" then left group '", config_.group, "'"), " while rank ",
                        config_.rank, " still needed ", ranks.size() == 1 ? "it" : "them", " for ", operation,
                        why.empty() ? advice : "");
    return local;
}

}  // namespace libddp
