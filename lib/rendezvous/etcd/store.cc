#include "rendezvous/etcd/store.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "util/boot_clock.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/printable.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

using std::chrono::milliseconds;

constexpr const char* kVersion = "libddp etcd store 2";
constexpr const char* kAlive = "w/alive/";
constexpr const char* kWatched = "w/";
constexpr const char* kHead = "w/head";
constexpr const char* kLog = "w/log/";
constexpr const char* kSnapshots = "s/";
constexpr const char* kNewest = "last";
constexpr const char* kFence = "fence";

// etcd looks for leases that have ended twice in a second, and then a participant buries their owner.
constexpr std::int64_t kBuriedMs = 1500;
// One part in so many of a lease is not relied on: clocks differ.
constexpr std::int64_t kClockDrift = 20;
// The time that a waiting call may take beyond its timeout.
constexpr std::int64_t kGraceMs = 2000;
// Requests that wait at the same time become one batch up to this size.
constexpr std::size_t kBatch = std::size_t{256} << 10;
// A long request may take this much more for each of its pieces, as in a tcp store for each MiB.
constexpr std::int64_t kPieceMs = 1000;
constexpr std::int64_t kFarewellMs = 600;
// The store is lost when no endpoint answers for this long, or twice the lease: an election takes some seconds.
constexpr std::int64_t kPatienceMs = 10'000;
// A watch that lags and brings nothing for this long has been forgotten by its server.
constexpr milliseconds kStale{1000};
constexpr std::int64_t kWatchPauseMs = 50;
// Operations of one transaction: etcd takes 128.
constexpr std::size_t kOperations = 100;
constexpr std::int64_t kFirstPage = 16;
constexpr std::int64_t kLongestPage = 4096;
constexpr std::size_t kPageBytes = std::size_t{4} << 20;
constexpr int kLoads = 5;

using Field = EtcdCondition::Field;
using Is = EtcdCondition::Is;

std::uint64_t random_number() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

// The key behind all that begin with `prefix`, which ends with a letter.
std::string end_of(std::string prefix) {
    ++prefix.back();
    return prefix;
}

std::size_t size_of(const Request& request) {
    std::size_t size = 0;
    for (const auto& value : request.values) size += value.size();
    for (const auto& key : request.keys) size += key.size();
    return size;
}

}  // namespace

EtcdStore::EtcdStore(const EtcdAddress& address, std::string name, std::int64_t call_timeout_ms,
                     const Deadline& deadline)
    : address_(address),
      name_(std::move(name)),
      root_("/ddp/" + address.name + "//"),
      call_timeout_ms_(call_timeout_ms),
      owner_(random_number()),
      endpoint_(std::make_shared<EtcdEndpoint>(0)),
      writer_client_(address, name_, endpoint_),
      follower_client_(address, name_, endpoint_),
      keeper_client_(address, name_, endpoint_) {
    renewed_ms_ = boot_ms();
    lease_ = writer_client_.grant_lease(address_.ttl_s, deadline);
    try {
        join(deadline);
        load(deadline);
        last_answer_ = Deadline::Clock::now();
        writer_ = quiet_thread([this] { persist("the writer of a store on etcd", [this] { write(); }); });
        follower_ = quiet_thread([this] { persist("the follower of a store on etcd", [this] { follow(); }); });
        keeper_ = quiet_thread([this] { persist("the keeper of a store on etcd", [this] { keep(); }); });
    } catch (...) {
        close();
        throw;
    }
}

EtcdStore::~EtcdStore() {
    close();
}

EtcdRange EtcdStore::below(const std::string& rest) const {
    return {key(rest), end_of(key(rest))};
}

std::int64_t EtcdStore::notices_death_ms() const {
    return address_.ttl_s * 1000 + kBuriedMs;
}

// etcd's clock may be a little faster than this one.
std::int64_t EtcdStore::alive_until_ms() const {
    const std::int64_t ttl_ms = address_.ttl_s * 1000;
    return renewed_ms_ + ttl_ms - ttl_ms / kClockDrift;
}

std::int64_t EtcdStore::patience_ms() const {
    return std::max(kPatienceMs, 2 * address_.ttl_s * 1000);
}

// ---- joining: on the thread that opens the store

// The first one finds what an earlier job has left, and removes it.
void EtcdStore::join(const Deadline& deadline) {
    const std::string alive = key(kWatched + EtcdReplica::alive_key(owner_));
    const auto here = EtcdOperation::put(alive, kVersion, lease_);
    const auto newest = EtcdOperation::put(key(kNewest));
    writer_client_.commit({{below(kAlive), Field::kCreated, Is::kEqual, 0}},
                          {EtcdOperation::remove({key(kHead), end_of(key(kLog))}),
                           EtcdOperation::remove(below(kSnapshots)), here, newest},
                          {here, newest}, deadline);
    next_beat_ = Deadline::Clock::now() + milliseconds(address_.ttl_s * 1000 / 3);
}

void EtcdStore::load(const Deadline& deadline) {
    for (int attempt = 1;; ++attempt) {
        try {
            replica_ = {};
            return load_at_one_revision(deadline);
        } catch (const Error& error) {
            // etcd has compacted the revision that was being read.
            if (error.info().code != DDP_ERROR_IO || attempt == kLoads) throw;
        }
    }
}

void EtcdStore::keep_lease_while_loading() {
    if (Deadline::Clock::now() < next_beat_) return;
    next_beat_ = Deadline::Clock::now() + milliseconds(address_.ttl_s * 1000 / 3);
    renew_lease(writer_client_);
}

// False: it has expired.
bool EtcdStore::renew_lease(EtcdClient& client) {
    const std::int64_t sent_ms = boot_ms();
    if (!client.keep_alive(lease_, Deadline::after_ms(address_.ttl_s * 1000))) return false;
    renewed_ms_ = sent_ms;
    return true;
}

// revision 0: the newest, which it becomes.
void EtcdStore::read_all(EtcdRange range, std::int64_t& revision, const Deadline& deadline,
                         const std::function<void(EtcdEntry)>& seen) {
    std::int64_t limit = kFirstPage;
    for (bool more = true; more;) {
        keep_lease_while_loading();
        EtcdRead page = writer_client_.read(range, revision, limit, deadline);
        if (revision == 0) revision = page.revision;
        std::size_t bytes = 0;
        more = page.more && !page.entries.empty();
        if (more) range.key = page.entries.back().key + '\0';
        for (auto& entry : page.entries) {
            bytes += entry.value.size();
            seen(std::move(entry));
        }
        limit = bytes > kPageBytes ? std::max<std::int64_t>(1, limit / 2) : std::min(limit * 2, kLongestPage);
    }
}

void EtcdStore::load_at_one_revision(const Deadline& deadline) {
    std::int64_t revision = 0;
    head_revision_ = 0;
    std::vector<EtcdEntry> log;
    std::vector<EtcdEntry> alive;
    EtcdSnapshotHead head;
    const std::string watched = key(kWatched);
    read_all(below(kWatched), revision, deadline, [&](EtcdEntry entry) {
        if (entry.key == key(kHead)) {
            head = EtcdSnapshotHead::decode(entry.value);
            head_revision_ = entry.mod_revision;
        } else {
            const bool is_alive = entry.key.starts_with(key(kAlive));
            if (is_alive && entry.value != kVersion)
                fail(DDP_ERROR_UNSUPPORTED, "the store at ", name_,
                     " is used by another version of libddp, which says '", in_quotes(entry.value),
                     "'; use one libddp for all ranks");
            entry.key.erase(0, watched.size());
            (is_alive ? alive : log).push_back(std::move(entry));
        }
    });
    if (head.id != 0) {
        std::string snapshot;
        read_all(below(kSnapshots + EtcdReplica::snapshot_key(head.id, 0).substr(0, 17)), revision, deadline,
                 [&](EtcdEntry entry) { snapshot += entry.value; });
        replica_.load(snapshot, head);
    }
    std::sort(log.begin(), log.end(),
              [](const EtcdEntry& a, const EtcdEntry& b) { return a.mod_revision < b.mod_revision; });
    for (const auto& entry : alive) {
        if (entry.key == EtcdReplica::alive_key(owner_)) joined_at_ = entry.create_revision;
        replica_.put(entry.key, entry.value, entry.mod_revision);
    }
    for (const auto& entry : log) replica_.put(entry.key, entry.value, entry.mod_revision);
    applied_ = revision;
}

// ---- callers' threads

void EtcdStore::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (lost_) throw Error(*lost_);
}

void EtcdStore::no_answer(std::int64_t within_ms) const {
    fail(DDP_ERROR_TIMEOUT, "the store at ", name_, " did not answer within ", within_ms, " ms");
}

void EtcdStore::interrupted(const Request& request) const {
    fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store at ", name_, " was interrupted");
}

std::int64_t EtcdStore::raise_fence(std::int64_t at_least) {
    {
        const Lock lock(mutex_);
        check_usable();
    }
    EtcdClient client(address_, name_, endpoint_);
    const auto deadline = Deadline::after_ms(call_timeout_ms_);
    for (;;) {
        const EtcdRead read = client.read({key(kFence), ""}, 0, 0, deadline);
        const bool is_there = !read.entries.empty();
        const std::int64_t kept = is_there ? read_fence(read.entries.front().value) : 0;
        if (kept >= at_least) return kept;
        const std::int64_t revision = is_there ? read.entries.front().mod_revision : 0;
        const auto raised = EtcdOperation::put(key(kFence), std::to_string(at_least));
        if (client.commit({{{key(kFence), ""}, Field::kModified, Is::kEqual, revision}}, {raised}, {}, deadline)
                .succeeded)
            return at_least;
    }
}

std::shared_ptr<EtcdStore::Entry> EtcdStore::submit(Request request) {
    auto entry = std::make_shared<Entry>();
    entry->id = next_request_++;
    entry->bytes = encode_request(entry->id, request);
    entry->request = std::move(request);
    in_flight_.emplace(entry->id, entry);
    outgoing_.push_back(entry);
    writer_wake_.notify_one();
    return entry;
}

// Until the entry has been applied here.
void EtcdStore::await(Lock& lock, Entry& entry, const Deadline& bound, std::int64_t bound_ms) {
    const auto waited = interrupt::wait(lock, changed_, bound, [&] { return entry.outcome || !usable(); });
    if (entry.outcome) return;
    check_usable();
    in_flight_.erase(entry.id);
    const auto unsent =
        std::find_if(outgoing_.begin(), outgoing_.end(), [&](const auto& e) { return e.get() == &entry; });
    if (unsent != outgoing_.end()) outgoing_.erase(unsent);
    if (waited == interrupt::Waited::kInterrupted) interrupted(entry.request);
    no_answer(bound_ms);
}

// Until the replica has all that was acknowledged before the call.
void EtcdStore::synchronise(Lock& lock, const Request& request, const Deadline& bound, std::int64_t bound_ms) {
    const std::uint64_t mine = ++syncs_asked_;
    writer_wake_.notify_one();
    const auto waited = interrupt::wait(
        lock, changed_, bound, [&] { return (syncs_done_ >= mine && applied_ >= sync_revision_) || !usable(); });
    check_usable();
    if (waited == interrupt::Waited::kInterrupted) interrupted(request);
    if (waited == interrupt::Waited::kTimeout) no_answer(bound_ms);
}

Outcome EtcdStore::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const std::int64_t pieces = static_cast<std::int64_t>(size_of(request) / kEtcdPiece);
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_ + pieces * kPieceMs;
    const std::int64_t bound_ms = waits ? request.timeout_ms + kGraceMs : call_ms;
    const auto bound = Deadline::after_ms(bound_ms);
    Lock lock(mutex_);
    check_usable();
    if (!changes_state(request.op)) return look(lock, request, bound, bound_ms);
    auto entry = submit(std::move(request));
    await(lock, *entry, bound, bound_ms);
    return std::move(entry->outcome.value());
}

bool EtcdStore::answers(std::int64_t within_ms) {
    try {
        perform(Request{}, within_ms);
        return true;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return false;
    }
}

Outcome EtcdStore::look(Lock& lock, const Request& request, const Deadline& bound, std::int64_t bound_ms) {
    const auto deadline = Deadline::after_ms(request.timeout_ms);
    synchronise(lock, request, bound, bound_ms);
    if (may_wait(request.op) && request.timeout_ms != kNoWait) {
        const auto waited = interrupt::wait(lock, changed_, deadline, [&] {
            return !usable() || replica_.state().first_missing(request.keys) == request.keys.size();
        });
        check_usable();
        if (waited == interrupt::Waited::kInterrupted) interrupted(request);
    }
    auto outcome = replica_.state().apply(owner_, request);
    return outcome ? std::move(*outcome) : replica_.state().timed_out(request, request.timeout_ms);
}

Notifier::Id EtcdStore::watch(const std::string& key, Notifier::Callback seen) {
    Lock lock(mutex_);
    check_usable();
    const Notifier::Id id = notifier_.add(std::move(seen));
    watches_.emplace(id, key);
    announce();
    return id;
}

Notifier::Id EtcdStore::watch_connection(Notifier::Callback lost) {
    Lock lock(mutex_);
    if (closed_) check_usable();
    const Notifier::Id id = notifier_.add(std::move(lost));
    if (lost_)
        notifier_.fire(id, lost_->message);
    else
        connection_watches_.insert(id);
    return id;
}

void EtcdStore::unwatch(Notifier::Id id) {
    {
        Lock lock(mutex_);
        watches_.erase(id);
        connection_watches_.erase(id);
    }
    notifier_.remove(id);
}

void EtcdStore::close() {
    if (close_called_.exchange(true)) return;
    {
        Lock lock(mutex_);
        closed_ = true;
        changed_.notify_all();
        writer_wake_.notify_all();
        keeper_wake_.notify_all();
    }
    for (EtcdClient* client : {&writer_client_, &follower_client_, &keeper_client_}) client->end();
    for (std::thread* thread : {&writer_, &follower_, &keeper_})
        if (thread->joinable()) thread->join();
    say_goodbye();
    notifier_.stop();
}

// The last one takes everything along. If etcd does not answer in time, the lease expires, and the others see to the rest.
void EtcdStore::say_goodbye() {
    if (lost_ || lease_ == 0) return;
    const interrupt::Off off;
    const auto deadline = Deadline::after_ms(kFarewellMs);
    try {
        EtcdClient client(address_, name_, endpoint_);
        if (joined_at_ == 0) return client.revoke_lease(lease_, deadline);
        const std::string alive = key(kWatched + EtcdReplica::alive_key(owner_));
        const auto gone = EtcdOperation::remove({alive, ""});
        client.commit(
            {{below(kAlive), Field::kCreated, Is::kEqual, joined_at_}},
            {gone, EtcdOperation::remove({key(kHead), end_of(key(kLog))}), EtcdOperation::remove(below(kSnapshots)),
             EtcdOperation::remove({key(kNewest), ""})},
            {gone, EtcdOperation::put(key(kWatched + EtcdReplica::bury_key(owner_))), EtcdOperation::put(key(kNewest))},
            deadline);
        client.revoke_lease(lease_, deadline);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "a farewell failed: ", error.what());
    }
}

void EtcdStore::lose(const std::string& reason) {
    Lock lock(mutex_);
    if (!usable()) return;
    lost_ = {DDP_ERROR_UNAVAILABLE, str("the store at ", name_, " was lost: ", reason)};
    in_flight_.clear();
    outgoing_.clear();
    for (auto id : connection_watches_) notifier_.fire(id, lost_->message);
    connection_watches_.clear();
    changed_.notify_all();
    writer_wake_.notify_all();
    keeper_wake_.notify_all();
    for (EtcdClient* client : {&writer_client_, &follower_client_, &keeper_client_}) client->end();
}

void EtcdStore::lose_if_final(const Error& error) {
    const auto code = error.info().code;
    if (code == DDP_ERROR_PERMISSION_DENIED || code == DDP_ERROR_UNSUPPORTED || code == DDP_ERROR_IO)
        lose(error.what());
}

// ---- the thread that writes

void EtcdStore::write() {
    Lock lock(mutex_);
    while (true) {
        writer_wake_.wait(lock, [&] { return !usable() || !outgoing_.empty() || syncs_asked_ > syncs_done_; });
        if (!usable()) break;
        const std::uint64_t syncs = syncs_asked_;
        Entries entries;
        for (std::size_t bytes = 0;
             !outgoing_.empty() && (entries.empty() || bytes + outgoing_.front()->bytes.size() <= kBatch);) {
            bytes += outgoing_.front()->bytes.size();
            entries.push_back(std::move(outgoing_.front()));
            outgoing_.pop_front();
        }
        lock.unlock();
        std::int64_t revision = 0;
        try {
            revision = entries.empty() ? newest_batch(writer_client_, Deadline::after_ms(patience_ms()))
                                       : write_batch(entries);
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_LIMIT || entries.empty()) {
                lose(error.what());
                lock.lock();
                break;
            }
            lock.lock();
            for (auto& entry : entries) {
                entry->outcome = failed(DDP_ERROR_LIMIT, error.what());
                in_flight_.erase(entry->id);
            }
            changed_.notify_all();
            continue;
        } catch (const std::exception& error) {
            lose(error.what());
            lock.lock();
            break;
        }
        lock.lock();
        syncs_done_ = syncs;
        sync_revision_ = std::max(sync_revision_, revision);
        changed_.notify_all();
    }
    lock.unlock();
    wire::release_thread_state();
}

std::int64_t EtcdStore::newest_batch(EtcdClient& client, const Deadline& deadline) const {
    const EtcdRead read = client.read({key(kNewest), ""}, 0, 0, deadline);
    return read.entries.empty() ? 0 : read.entries.front().mod_revision;
}

std::int64_t EtcdStore::write_batch(Entries& entries) {
    std::string joined;
    for (const auto& entry : entries) {
        joined += entry->bytes;
        entry->bytes = {};
    }
    const std::uint64_t batch = next_batch_++;
    std::int64_t revision = 0;
    std::uint64_t piece = 0;
    for (std::string_view rest = joined; piece == 0 || !rest.empty(); ++piece) {
        const std::string_view part = rest.substr(0, kEtcdPiece);
        rest.remove_prefix(part.size());
        revision = commit_piece(batch, piece, EtcdReplica::piece(part, rest.empty()));
    }
    return revision;
}

std::int64_t EtcdStore::commit_piece(std::uint64_t batch, std::uint64_t piece, std::string value) {
    const std::string alive = key(kWatched + EtcdReplica::alive_key(owner_));
    const std::string here = key(kWatched + EtcdReplica::log_key(owner_, batch, piece));
    const EtcdCommit commit = writer_client_.commit(
        {{{alive, ""}, Field::kVersion, Is::kGreater, 0}, {{here, ""}, Field::kVersion, Is::kEqual, 0}},
        {EtcdOperation::put(here, std::move(value)), EtcdOperation::put(key(kNewest))},
        {EtcdOperation::read({alive, ""})}, Deadline::after_ms(patience_ms()));
    // Otherwise an earlier attempt has written it.
    if (!commit.succeeded && commit.entries.empty())
        fail(DDP_ERROR_UNAVAILABLE, "this process was silent for longer than ", address_.ttl_s,
             " s, so that it counts as dead (ttl)");
    return commit.succeeded ? commit.revision : newest_batch(writer_client_, Deadline::after_ms(patience_ms()));
}

// ---- the thread that reads the watch

void EtcdStore::follow() {
    while (true) {
        std::int64_t from = 0;
        {
            Lock lock(mutex_);
            if (!usable()) break;
            from = applied_;  // again: of several events at one revision, some may not have come
        }
        std::int64_t compacted = 0;
        try {
            follower_client_.watch(below(kWatched), from, [&](EtcdNews news) {
                compacted = news.compacted;
                take_news(std::move(news));
            });
        } catch (const Error& error) {
            lose_if_final(error);
        }
        try {
            follower_client_.pause(kWatchPauseMs, Deadline::after_ms(kWatchPauseMs));
            if (compacted != 0) skip_compacted(compacted);
        } catch (const Error& error) {
            if (error.info().code == DDP_ERROR_ABORTED) break;
            // IO: compacted once more.
            if (error.info().code != DDP_ERROR_IO) lose_if_final(error);
        }
    }
    wire::release_thread_state();
}

void EtcdStore::take_news(EtcdNews news) {
    if (news.canceled) {
        if (news.reason.find("permission denied") != std::string::npos) lose(news.reason);
        fail(DDP_ERROR_UNAVAILABLE, "etcd ended the watch: ", news.reason);
    }
    bool lease_expired = false;
    {
        Lock lock(mutex_);
        const std::string watched = key(kWatched);
        for (const auto& event : news.events) {
            if (!event.entry.key.starts_with(watched)) continue;
            const std::string_view rest = std::string_view(event.entry.key).substr(watched.size());
            if (event.deleted) {
                replica_.removed(rest);
                lease_expired |= rest == EtcdReplica::alive_key(owner_);
            } else {
                if (event.entry.key == key(kHead)) head_revision_ = event.entry.mod_revision;
                replica_.put(
                    rest, event.entry.value, event.entry.mod_revision,
                    [&](Caller caller, std::optional<Outcome> outcome) { answer(caller, std::move(outcome)); });
            }
            applied_ = std::max(applied_, event.entry.mod_revision);
        }
        announce();
        if (!replica_.to_bury().empty() || (replica_.wants_snapshot() && replica_.lowest_alive() == owner_)) {
            attend_ = true;
            keeper_wake_.notify_one();
        }
    }
    if (lease_expired)
        lose(str("this process was silent for longer than ", address_.ttl_s, " s, so that it counts as dead (ttl)"));
}

// etcd has dropped history up to that revision, of which it still knows what there was then. Most often nothing of what is dropped was
// this store's.
void EtcdStore::skip_compacted(std::int64_t revision) {
    const auto read = [&](const EtcdRange& range) {
        return follower_client_.read(range, revision, 0, Deadline::after_ms(patience_ms())).entries;
    };
    const auto newest = read({key(kNewest), ""});
    const auto head = read({key(kHead), ""});
    const auto alive = read(below(kAlive));
    {
        Lock lock(mutex_);
        if (newest.empty() || newest.front().mod_revision <= applied_) {
            const std::size_t watched = key(kWatched).size();
            std::vector<std::string> keys;
            for (const auto& entry : alive) {
                keys.push_back(entry.key.substr(watched));
                replica_.put(keys.back(), entry.value, entry.mod_revision);
            }
            replica_.only_alive(keys);
            if (!head.empty() && head.front().mod_revision > head_revision_) {
                head_revision_ = head.front().mod_revision;
                replica_.put(head.front().key.substr(watched), head.front().value, head_revision_);
            }
            applied_ = std::max(applied_, revision);
            attend_ = true;
            keeper_wake_.notify_one();
            return;
        }
    }
    lose("etcd has compacted its history before this process has read it");
}

// The thread that asked for this gets what it has come to.
void EtcdStore::answer(Caller caller, std::optional<Outcome> outcome) {
    const auto entry = caller.owner == owner_ ? in_flight_.extract(caller.request) : decltype(in_flight_)::node_type();
    if (entry) entry.mapped()->outcome = std::move(outcome);
}

// Tells the waiting threads and the watches that the state has changed.
void EtcdStore::announce() {
    changed_.notify_all();
    for (auto at = watches_.begin(); at != watches_.end();) {
        auto outcome = replica_.state().apply(0, Request{Op::kGet, {at->second}});
        if (outcome && outcome->code == DDP_OK) notifier_.fire(at->first, std::move(outcome->values.front()));
        at = outcome ? watches_.erase(at) : std::next(at);
    }
}

// ---- the thread that keeps the lease, buries the dead and makes snapshots

void EtcdStore::keep() {
    while (true) {
        {
            Lock lock(mutex_);
            keeper_wake_.wait_until(lock, next_beat_, [&] { return attend_ || !usable(); });
            if (!usable()) break;
            attend_ = false;
        }
        try {
            if (Deadline::Clock::now() >= next_beat_) {
                beat();
                look_for_stale_watch();
            }
            bury_the_dead();
            make_snapshot();
        } catch (const Error& error) {
            lose_if_final(error);
            const auto silent = Deadline::Clock::now() - last_answer_;
            if (silent > milliseconds(patience_ms())) lose(error.what());
        }
    }
    wire::release_thread_state();
}

void EtcdStore::beat() {
    const std::int64_t period = address_.ttl_s * 1000 / 3;
    next_beat_ = Deadline::Clock::now() + milliseconds(period);
    tried_to_bury_.clear();
    if (!renew_lease(keeper_client_))
        return lose(
            str("this process was silent for longer than ", address_.ttl_s, " s, so that it counts as dead (ttl)"));
    last_answer_ = Deadline::Clock::now();
}

// A server that is cut off from the others keeps a watch open and says nothing.
void EtcdStore::look_for_stale_watch() {
    const std::int64_t newest = newest_batch(keeper_client_, Deadline::after_ms(address_.ttl_s * 1000 / 3));
    Lock lock(mutex_);
    const std::int64_t before = applied_;
    changed_.wait_for(lock, kStale, [&] { return applied_ >= newest || !usable(); });
    if (applied_ < newest && applied_ == before) follower_client_.cut();
}

void EtcdStore::bury_the_dead() {
    std::vector<std::uint64_t> dead;
    {
        Lock lock(mutex_);
        dead = replica_.to_bury();
    }
    for (std::uint64_t owner : dead) {
        if (!tried_to_bury_.insert(owner).second) continue;
        const EtcdRange alive{key(kWatched + EtcdReplica::alive_key(owner)), ""};
        const EtcdRange bury{key(kWatched + EtcdReplica::bury_key(owner)), ""};
        keeper_client_.commit({{alive, Field::kVersion, Is::kEqual, 0}, {bury, Field::kVersion, Is::kEqual, 0}},
                              {EtcdOperation::put(bury.key), EtcdOperation::put(key(kNewest))}, {},
                              Deadline::after_ms(address_.ttl_s * 1000 / 3));
    }
}

// The living one with the lowest number does it.
void EtcdStore::make_snapshot() {
    std::string bytes;
    EtcdSnapshotHead head;
    std::uint64_t old_id = 0;
    std::int64_t head_revision = 0;
    std::vector<EtcdReplica::Logged> logged;
    {
        Lock lock(mutex_);
        if (!replica_.wants_snapshot() || replica_.lowest_alive() != owner_) return;
        bytes = replica_.snapshot();
        logged = replica_.logged();
        head.id = random_number();
        head.revision = applied_;
        old_id = replica_.head().id;
        head_revision = head_revision_;
    }
    const auto patience = [&] { return Deadline::after_ms(patience_ms()); };
    for (std::string_view rest = bytes; !rest.empty(); ++head.pieces) {
        if (Deadline::Clock::now() >= next_beat_) beat();
        const std::string_view part = rest.substr(0, kEtcdPiece);
        rest.remove_prefix(part.size());
        keeper_client_.commit(
            {},
            {EtcdOperation::put(key(kSnapshots + EtcdReplica::snapshot_key(head.id, head.pieces)), std::string(part))},
            {}, patience());
    }
    const auto pieces_of = [&](std::uint64_t id) {
        return EtcdOperation::remove(below(kSnapshots + EtcdReplica::snapshot_key(id, 0).substr(0, 17)));
    };
    const std::string value = head.encode();
    const EtcdCommit commit = keeper_client_.commit({{{key(kHead), ""}, Field::kModified, Is::kEqual, head_revision}},
                                                    {EtcdOperation::put(key(kHead), value)},
                                                    {EtcdOperation::read({key(kHead), ""})}, patience());
    const bool mine = commit.succeeded || (!commit.entries.empty() && commit.entries.front().value == value);
    keeper_client_.commit({}, {pieces_of(mine ? old_id : head.id)}, {}, patience());
    if (mine) remove_logged(logged);
}

void EtcdStore::remove_logged(const std::vector<EtcdReplica::Logged>& logged) {
    std::vector<EtcdOperation> removals;
    const auto carry_out = [&] {
        if (!removals.empty()) keeper_client_.commit({}, removals, {}, Deadline::after_ms(patience_ms()));
        removals.clear();
    };
    for (const auto& [owner, last_batch, buried] : logged) {
        removals.push_back(EtcdOperation::remove({key(kWatched + EtcdReplica::log_key(owner, 0, 0)),
                                                  key(kWatched + EtcdReplica::log_key(owner, last_batch + 1, 0))}));
        if (buried) removals.push_back(EtcdOperation::remove({key(kWatched + EtcdReplica::bury_key(owner)), ""}));
        if (removals.size() >= kOperations) carry_out();
    }
    carry_out();
}

}  // namespace libddp
