#include "rendezvous/etcd/follower.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "util/printable.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

using namespace etcd_keys;

constexpr std::int64_t kWatchPauseMs = 50;
constexpr std::int64_t kFirstPage = 16;
constexpr std::int64_t kLongestPage = 4096;
constexpr std::size_t kPageBytes = std::size_t{4} << 20;
constexpr int kLoads = 5;

}  // namespace

void EtcdFollower::start(std::function<void()> news) {
    news_ = std::move(news);
    thread_ =
        quiet_thread([this] { persist("the follower of a store on etcd", [this] { follow(); }); });
}

void EtcdFollower::join() {
    if (thread_.joinable()) thread_.join();
}

void EtcdFollower::load(const Deadline& deadline, const std::function<void()>& meanwhile) {
    for (int attempt = 1;; ++attempt) {
        try {
            return load_at_one_revision(deadline, meanwhile);
        } catch (const Error& error) {
            // etcd has compacted the revision that was being read.
            if (error.info().code != DDP_ERROR_IO || attempt == kLoads) throw;
        }
    }
}

// revision 0: the newest, which it becomes.
void EtcdFollower::read_all(EtcdRange range, std::int64_t& revision, const Deadline& deadline,
                            const std::function<void()>& meanwhile,
                            const std::function<void(EtcdEntry)>& seen) {
    std::int64_t limit = kFirstPage;
    for (bool more = true; more;) {
        meanwhile();
        EtcdRead page = client_.read(range, revision, limit, deadline);
        if (revision == 0) revision = page.revision;
        std::size_t bytes = 0;
        more = page.more && !page.entries.empty();
        if (more) range.key = page.entries.back().key + '\0';
        for (auto& entry : page.entries) {
            bytes += entry.value.size();
            seen(std::move(entry));
        }
        limit = bytes > kPageBytes ? std::max<std::int64_t>(1, limit / 2)
                                   : std::min(limit * 2, kLongestPage);
    }
}

void EtcdFollower::load_at_one_revision(const Deadline& deadline,
                                        const std::function<void()>& meanwhile) {
    std::int64_t revision = 0;
    std::int64_t head_revision = 0;
    std::vector<EtcdEntry> log;
    std::vector<EtcdEntry> alive;
    EtcdSnapshotHead head;
    const std::string watched = participant_.key(kWatched);
    read_all(participant_.below(kWatched), revision, deadline, meanwhile, [&](EtcdEntry entry) {
        if (entry.key == participant_.key(kHead)) {
            head = EtcdSnapshotHead::decode(entry.value);
            head_revision = entry.mod_revision;
        } else {
            const bool is_alive = entry.key.starts_with(participant_.key(kAlive));
            if (is_alive && entry.value != kEtcdStoreVersion)
                fail(DDP_ERROR_UNSUPPORTED, "the store at ", participant_.name,
                     " is used by another version of libddp, which says '", in_quotes(entry.value),
                     "'; use one libddp for all ranks");
            entry.key.erase(0, watched.size());
            (is_alive ? alive : log).push_back(std::move(entry));
        }
    });
    std::string snapshot;
    if (head.id != 0)
        read_all(participant_.snapshot(head.id), revision, deadline, meanwhile,
                 [&](EtcdEntry entry) { snapshot += entry.value; });
    std::sort(log.begin(), log.end(), [](const EtcdEntry& a, const EtcdEntry& b) {
        return a.mod_revision < b.mod_revision;
    });
    const Lock lock(participant_.mutex);
    EtcdReplica& replica = participant_.replica;
    replica = {};
    if (head.id != 0) replica.load(snapshot, head);
    for (const auto& entry : alive) {
        if (entry.key == EtcdReplica::alive_key(participant_.owner))
            participant_.joined_at = entry.create_revision;
        replica.put(entry.key, entry.value, entry.mod_revision);
    }
    for (const auto& entry : log) replica.put(entry.key, entry.value, entry.mod_revision);
    participant_.head_revision = head_revision;
    participant_.applied = revision;
}

// ---- the thread

void EtcdFollower::follow() {
    while (true) {
        std::int64_t from = 0;
        {
            const Lock lock(participant_.mutex);
            if (!participant_.usable()) break;
            // again: of several events at one revision, some may not have come
            from = participant_.applied;
        }
        std::int64_t compacted = 0;
        try {
            client_.watch(participant_.below(kWatched), from, [&](EtcdNews news) {
                compacted = news.compacted;
                take_news(std::move(news));
            });
        } catch (const Error& error) {
            participant_.lose_if_final(error);
        }
        try {
            client_.pause(kWatchPauseMs, Deadline::after_ms(kWatchPauseMs));
            if (compacted != 0) skip_compacted(compacted);
        } catch (const Error& error) {
            if (error.info().code == DDP_ERROR_ABORTED) break;
            // IO: compacted once more.
            if (error.info().code != DDP_ERROR_IO) participant_.lose_if_final(error);
        }
    }
    wire::release_thread_state();
}

void EtcdFollower::take_news(EtcdNews news) {
    if (news.canceled) {
        if (news.reason.find("permission denied") != std::string::npos)
            participant_.lose(news.reason);
        fail(DDP_ERROR_UNAVAILABLE, "etcd ended the watch: ", news.reason);
    }
    bool lease_expired = false;
    {
        const Lock lock(participant_.mutex);
        const std::string watched = participant_.key(kWatched);
        for (const auto& event : news.events) {
            if (!event.entry.key.starts_with(watched)) continue;
            const std::string_view rest = std::string_view(event.entry.key).substr(watched.size());
            if (event.deleted) {
                participant_.replica.removed(rest);
                lease_expired |= rest == EtcdReplica::alive_key(participant_.owner);
            } else {
                if (event.entry.key == participant_.key(kHead))
                    participant_.head_revision = event.entry.mod_revision;
                participant_.replica.put(rest, event.entry.value, event.entry.mod_revision,
                                         applied_);
            }
            participant_.applied = std::max(participant_.applied, event.entry.mod_revision);
        }
        news_();
    }
    if (lease_expired) participant_.lose(participant_.was_silent());
}

// etcd has dropped history up to that revision, of which it still knows what there was then. Most
// often nothing of what is dropped was this store's.
void EtcdFollower::skip_compacted(std::int64_t revision) {
    const auto read = [&](const EtcdRange& range) {
        return client_.read(range, revision, 0, participant_.patience()).entries;
    };
    const auto newest = read({participant_.key(kNewest), ""});
    const auto head = read({participant_.key(kHead), ""});
    const auto alive = read(participant_.below(kAlive));
    {
        const Lock lock(participant_.mutex);
        if (newest.empty() || newest.front().mod_revision <= participant_.applied) {
            EtcdReplica& replica = participant_.replica;
            const std::size_t watched = participant_.key(kWatched).size();
            std::vector<std::string> keys;
            for (const auto& entry : alive) {
                keys.push_back(entry.key.substr(watched));
                replica.put(keys.back(), entry.value, entry.mod_revision);
            }
            replica.only_alive(keys);
            if (!head.empty() && head.front().mod_revision > participant_.head_revision) {
                participant_.head_revision = head.front().mod_revision;
                replica.put(head.front().key.substr(watched), head.front().value,
                            participant_.head_revision);
            }
            participant_.applied = std::max(participant_.applied, revision);
            news_();
            return;
        }
    }
    participant_.lose("etcd has compacted its history before this process has read it");
}

}  // namespace libddp
