#include "rendezvous/etcd/store.h"

#include <utility>

#include "util/interrupt.h"

namespace libddp {
namespace {

// etcd looks for leases that have ended twice in a second, and then a participant buries their
// owner.
constexpr std::int64_t kBuriedMs = 1500;
// The time that a waiting call may take beyond its timeout.
constexpr std::int64_t kGraceMs = 2000;
// A long request may take this much more for each of its pieces, as in a tcp store for each MiB.
constexpr std::int64_t kPieceMs = 1000;

std::size_t size_of(const Request& request) {
    std::size_t size = 0;
    for (const auto& value : request.values) size += value.size();
    for (const auto& key : request.keys) size += key.size();
    return size;
}

}  // namespace

EtcdStore::EtcdStore(const EtcdAddress& address, const std::string& name,
                     std::int64_t call_timeout_ms, const Deadline& deadline)
    : call_timeout_ms_(call_timeout_ms),
      participant_(address, name, [this]() DDP_REQUIRES(participant_.mutex) { tell_loss(); }),
      writer_(participant_),
      follower_(participant_,
                [this](Caller caller, std::optional<Outcome> outcome) {
                    writer_.answer(caller, std::move(outcome));
                }),
      keeper_(participant_, deadline) {
    try {
        keeper_.announce(deadline);
        follower_.load(deadline, [this] { keeper_.keep_lease(); });
        writer_.start();
        follower_.start([this]() DDP_REQUIRES(participant_.mutex) { announce(); });
        keeper_.start([this] { follower_.cut(); });
    } catch (...) {
        close();
        throw;
    }
}

EtcdStore::~EtcdStore() {
    close();
}

std::int64_t EtcdStore::notices_death_ms() const {
    return participant_.address.ttl_s * 1000 + kBuriedMs;
}

std::int64_t EtcdStore::raise_fence(std::int64_t at_least) {
    {
        const Lock lock(participant_.mutex);
        participant_.check_usable();
    }
    EtcdClient client = participant_.client();
    const std::string at = participant_.key(etcd_keys::kFence);
    const auto deadline = Deadline::after_ms(call_timeout_ms_);
    for (;;) {
        const EtcdRead read = client.read({at, ""}, 0, 0, deadline);
        const bool is_there = !read.entries.empty();
        const std::int64_t kept = is_there ? read_fence(read.entries.front().value) : 0;
        if (kept >= at_least) return kept;
        const EtcdCondition unchanged{{at, ""},
                                      EtcdCondition::Field::kModified,
                                      EtcdCondition::Is::kEqual,
                                      is_there ? read.entries.front().mod_revision : 0};
        const auto raised = EtcdOperation::put(at, std::to_string(at_least));
        if (client.commit({unchanged}, {raised}, {}, deadline).succeeded) return at_least;
    }
}

Outcome EtcdStore::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const std::int64_t pieces = static_cast<std::int64_t>(size_of(request) / kEtcdPiece);
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_ + pieces * kPieceMs;
    const std::int64_t bound_ms = waits ? request.timeout_ms + kGraceMs : call_ms;
    const auto bound = Deadline::after_ms(bound_ms);
    Lock lock(participant_.mutex);
    participant_.check_usable();
    if (changes_state(request.op))
        return writer_.carry_out(lock, std::move(request), bound, bound_ms);
    return look(lock, request, bound, bound_ms);
}

Outcome EtcdStore::look(Lock& lock, const Request& request, const Deadline& bound,
                        std::int64_t bound_ms) {
    const auto deadline = Deadline::after_ms(request.timeout_ms);
    writer_.synchronise(lock, request, bound, bound_ms);
    StoreState& state = participant_.replica.state();
    if (may_wait(request.op) && request.timeout_ms != kNoWait) {
        const auto waited = interrupt::wait(
            lock, participant_.changed, deadline, [&]() DDP_REQUIRES(participant_.mutex) {
                return !participant_.usable() ||
                       state.first_missing(request.keys) == request.keys.size();
            });
        participant_.check_usable();
        if (waited == interrupt::Waited::kInterrupted) participant_.interrupted(request);
    }
    auto outcome = state.apply(participant_.owner, request);
    return outcome ? std::move(*outcome) : state.timed_out(request, request.timeout_ms);
}

Notifier::Id EtcdStore::watch(const std::string& key, Notifier::Callback seen) {
    const Lock lock(participant_.mutex);
    participant_.check_usable();
    const Notifier::Id id = watches_.add(key, std::move(seen));
    watches_.look(participant_.replica.state());
    return id;
}

Notifier::Id EtcdStore::watch_connection(Notifier::Callback lost) {
    const Lock lock(participant_.mutex);
    if (participant_.closed) participant_.check_usable();
    const Notifier::Id id = notifier_.add(std::move(lost));
    if (participant_.lost)
        notifier_.fire(id, participant_.lost->message);
    else
        connection_watches_.insert(id);
    return id;
}

void EtcdStore::unwatch(Notifier::Id id) {
    {
        const Lock lock(participant_.mutex);
        watches_.forget(id);
        connection_watches_.erase(id);
    }
    notifier_.remove(id);
}

// Tells the waiting threads, the watches and the keeper that the replica has changed.
void EtcdStore::announce() {
    participant_.changed.notify_all();
    watches_.look(participant_.replica.state());
    keeper_.look();
}

void EtcdStore::end_threads() {
    writer_.drop();
    keeper_.look();
    writer_.end_calls();
    follower_.end_calls();
    keeper_.end_calls();
}

void EtcdStore::tell_loss() {
    end_threads();
    for (auto id : connection_watches_) notifier_.fire(id, participant_.lost->message);
    connection_watches_.clear();
}

void EtcdStore::close() {
    if (close_called_.exchange(true)) return;
    {
        const Lock lock(participant_.mutex);
        participant_.closed = true;
        participant_.changed.notify_all();
        end_threads();
    }
    writer_.join();
    follower_.join();
    keeper_.join();
    keeper_.leave();
    notifier_.stop();
}

}  // namespace libddp
