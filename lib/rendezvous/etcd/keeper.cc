#include "rendezvous/etcd/keeper.h"

#include <chrono>
#include <utility>

#include "util/boot_clock.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

using namespace etcd_keys;
using std::chrono::milliseconds;

// One part in so many of a lease is not relied on: clocks differ.
constexpr std::int64_t kClockDrift = 20;
constexpr std::int64_t kFarewellMs = 600;
// A watch that lags and brings nothing for this long has been forgotten by its server.
constexpr milliseconds kStale{1000};
// Operations of one transaction: etcd takes 128.
constexpr std::size_t kOperations = 100;

using Field = EtcdCondition::Field;
using Is = EtcdCondition::Is;

}  // namespace

EtcdKeeper::EtcdKeeper(EtcdParticipant& participant, const Deadline& deadline)
    : participant_(participant), client_(participant.client()), renewed_ms_(boot_ms()) {
    lease_ = client_.grant_lease(participant_.address.ttl_s, deadline);
}

void EtcdKeeper::announce(const Deadline& deadline) {
    const auto here = EtcdOperation::put(participant_.alive_key(), kEtcdStoreVersion, lease_);
    const auto newest = EtcdOperation::put(participant_.key(kNewest));
    client_.commit({{participant_.below(kAlive), Field::kCreated, Is::kEqual, 0}},
                   {EtcdOperation::remove(participant_.contents()),
                    EtcdOperation::remove(participant_.below(kSnapshots)), here, newest},
                   {here, newest}, deadline);
    next_beat_ = third_of_lease().at();
}

void EtcdKeeper::keep_lease() {
    if (Deadline::Clock::now() < next_beat_) return;
    next_beat_ = third_of_lease().at();
    renew_lease();
}

// False: it has expired.
bool EtcdKeeper::renew_lease() {
    const std::int64_t sent_ms = boot_ms();
    if (!client_.keep_alive(lease_, Deadline::after_ms(participant_.address.ttl_s * 1000)))
        return false;
    renewed_ms_ = sent_ms;
    return true;
}

// etcd's clock may be a little faster than this one.
std::int64_t EtcdKeeper::alive_until_ms() const {
    const std::int64_t ttl_ms = participant_.address.ttl_s * 1000;
    return renewed_ms_ + ttl_ms - ttl_ms / kClockDrift;
}

void EtcdKeeper::start(std::function<void()> cut_watch) {
    cut_watch_ = std::move(cut_watch);
    last_answer_ = Deadline::Clock::now();
    thread_ =
        quiet_thread([this] { persist("the keeper of a store on etcd", [this] { keep(); }); });
}

void EtcdKeeper::join() {
    if (thread_.joinable()) thread_.join();
}

void EtcdKeeper::look() {
    participant_.mutex.assume_held();
    EtcdReplica& replica = participant_.replica;
    const bool has_work =
        !replica.to_bury().empty() ||
        (replica.wants_snapshot() && replica.lowest_alive() == participant_.owner);
    attend_ |= has_work;
    if (has_work || !participant_.usable()) wake_.notify_one();
}

void EtcdKeeper::leave() {
    std::int64_t joined_at = 0;
    {
        const Lock lock(participant_.mutex);
        if (participant_.lost || lease_ == 0) return;
        joined_at = participant_.joined_at;
    }
    const interrupt::Off off;
    const auto deadline = Deadline::after_ms(kFarewellMs);
    try {
        EtcdClient client = participant_.client();
        if (joined_at == 0) return client.revoke_lease(lease_, deadline);
        const auto gone = EtcdOperation::remove({participant_.alive_key(), ""});
        client.commit({{participant_.below(kAlive), Field::kCreated, Is::kEqual, joined_at}},
                      {gone, EtcdOperation::remove(participant_.contents()),
                       EtcdOperation::remove(participant_.below(kSnapshots)),
                       EtcdOperation::remove({participant_.key(kNewest), ""})},
                      {gone,
                       EtcdOperation::put(
                           participant_.key(kWatched + EtcdReplica::bury_key(participant_.owner))),
                       EtcdOperation::put(participant_.key(kNewest))},
                      deadline);
        client.revoke_lease(lease_, deadline);
    } catch (const Error& error) {
        log(LogLevel::kInfo, "a farewell failed: ", error.what());
    }
}

// ---- the thread

void EtcdKeeper::keep() {
    while (true) {
        {
            Lock lock(participant_.mutex);
            wake_.wait_until(lock, next_beat_, [&]() DDP_REQUIRES(participant_.mutex) {
                return attend_ || !participant_.usable();
            });
            if (!participant_.usable()) break;
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
            participant_.lose_if_final(error);
            const auto silent = Deadline::Clock::now() - last_answer_;
            if (silent > milliseconds(participant_.patience_ms())) participant_.lose(error.what());
        }
    }
    wire::release_thread_state();
}

void EtcdKeeper::beat() {
    next_beat_ = third_of_lease().at();
    tried_to_bury_.clear();
    if (!renew_lease()) return participant_.lose(participant_.was_silent());
    last_answer_ = Deadline::Clock::now();
}

// A server that is cut off from the others keeps a watch open and says nothing.
void EtcdKeeper::look_for_stale_watch() {
    const std::int64_t newest = participant_.newest_batch(client_, third_of_lease());
    Lock lock(participant_.mutex);
    const std::int64_t before = participant_.applied;
    participant_.changed.wait_until(
        lock, Deadline::Clock::now() + kStale, [&]() DDP_REQUIRES(participant_.mutex) {
            return participant_.applied >= newest || !participant_.usable();
        });
    if (participant_.applied < newest && participant_.applied == before) cut_watch_();
}

void EtcdKeeper::bury_the_dead() {
    std::vector<std::uint64_t> dead;
    {
        const Lock lock(participant_.mutex);
        dead = participant_.replica.to_bury();
    }
    for (std::uint64_t owner : dead) {
        if (!tried_to_bury_.insert(owner).second) continue;
        const EtcdRange alive{participant_.key(kWatched + EtcdReplica::alive_key(owner)), ""};
        const EtcdRange bury{participant_.key(kWatched + EtcdReplica::bury_key(owner)), ""};
        client_.commit(
            {{alive, Field::kVersion, Is::kEqual, 0}, {bury, Field::kVersion, Is::kEqual, 0}},
            {EtcdOperation::put(bury.key), EtcdOperation::put(participant_.key(kNewest))}, {},
            third_of_lease());
    }
}

// The living one with the lowest number does it.
void EtcdKeeper::make_snapshot() {
    std::string bytes;
    EtcdSnapshotHead head;
    std::uint64_t old_id = 0;
    std::int64_t head_revision = 0;
    std::vector<EtcdReplica::Logged> logged;
    {
        const Lock lock(participant_.mutex);
        EtcdReplica& replica = participant_.replica;
        if (!replica.wants_snapshot() || replica.lowest_alive() != participant_.owner) return;
        bytes = replica.snapshot();
        logged = replica.logged();
        head.id = random_number();
        head.revision = participant_.applied;
        old_id = replica.head().id;
        head_revision = participant_.head_revision;
    }
    for (std::string_view rest = bytes; !rest.empty(); ++head.pieces) {
        if (Deadline::Clock::now() >= next_beat_) beat();
        const std::string_view part = rest.substr(0, kEtcdPiece);
        rest.remove_prefix(part.size());
        const std::string at =
            participant_.key(kSnapshots + EtcdReplica::snapshot_key(head.id, head.pieces));
        client_.commit({}, {EtcdOperation::put(at, std::string(part))}, {},
                       participant_.patience());
    }
    const std::string at = participant_.key(kHead);
    const std::string value = head.encode();
    const EtcdCommit commit = client_.commit(
        {{{at, ""}, Field::kModified, Is::kEqual, head_revision}}, {EtcdOperation::put(at, value)},
        {EtcdOperation::read({at, ""})}, participant_.patience());
    const bool mine =
        commit.succeeded || (!commit.entries.empty() && commit.entries.front().value == value);
    client_.commit({}, {EtcdOperation::remove(participant_.snapshot(mine ? old_id : head.id))}, {},
                   participant_.patience());
    if (mine) remove_logged(logged);
}

void EtcdKeeper::remove_logged(const std::vector<EtcdReplica::Logged>& logged) {
    std::vector<EtcdOperation> removals;
    const auto carry_out = [&] {
        if (!removals.empty()) client_.commit({}, removals, {}, participant_.patience());
        removals.clear();
    };
    const auto at = [&](const std::string& rest) { return participant_.key(kWatched + rest); };
    for (const auto& [owner, last_batch, buried] : logged) {
        removals.push_back(
            EtcdOperation::remove({at(EtcdReplica::log_key(owner, 0, 0)),
                                   at(EtcdReplica::log_key(owner, last_batch + 1, 0))}));
        if (buried)
            removals.push_back(EtcdOperation::remove({at(EtcdReplica::bury_key(owner)), ""}));
        if (removals.size() >= kOperations) carry_out();
    }
    carry_out();
}

}  // namespace libddp
