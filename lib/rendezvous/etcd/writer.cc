#include "rendezvous/etcd/writer.h"

#include <algorithm>
#include <utility>

#include "util/interrupt.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

// Requests that wait at the same time become one batch up to this size.
constexpr std::size_t kBatch = std::size_t{256} << 10;

using Field = EtcdCondition::Field;
using Is = EtcdCondition::Is;

}  // namespace

void EtcdWriter::start() {
    thread_ =
        quiet_thread([this] { persist("the writer of a store on etcd", [this] { write(); }); });
}

void EtcdWriter::join() {
    if (thread_.joinable()) thread_.join();
}

void EtcdWriter::drop() {
    participant_.mutex.assume_held();
    in_flight_.clear();
    outgoing_.clear();
    wake_.notify_all();
}

void EtcdWriter::answer(Caller caller, std::optional<Outcome> outcome) {
    participant_.mutex.assume_held();
    if (caller.owner != participant_.owner) return;
    if (const auto entry = in_flight_.extract(caller.request))
        entry.mapped()->outcome = std::move(outcome);
}

Outcome EtcdWriter::carry_out(Lock& lock, Request request, const Deadline& bound,
                              std::int64_t bound_ms) {
    participant_.mutex.assume_held();
    const auto entry = std::make_shared<Entry>();
    entry->id = next_request_++;
    entry->bytes = encode_request(entry->id, request);
    in_flight_.emplace(entry->id, entry);
    outgoing_.push_back(entry);
    wake_.notify_one();
    const auto waited =
        interrupt::wait(lock, participant_.changed, bound, [&]() DDP_REQUIRES(participant_.mutex) {
            return entry->outcome || !participant_.usable();
        });
    if (entry->outcome) return std::move(*entry->outcome);
    participant_.check_usable();
    in_flight_.erase(entry->id);
    std::erase(outgoing_, entry);
    if (waited == interrupt::Waited::kInterrupted) participant_.interrupted(request);
    participant_.no_answer(bound_ms);
}

void EtcdWriter::synchronise(Lock& lock, const Request& request, const Deadline& bound,
                             std::int64_t bound_ms) {
    participant_.mutex.assume_held();
    const std::uint64_t mine = ++syncs_asked_;
    wake_.notify_one();
    const auto waited =
        interrupt::wait(lock, participant_.changed, bound, [&]() DDP_REQUIRES(participant_.mutex) {
            return (syncs_done_ >= mine && participant_.applied >= sync_revision_) ||
                   !participant_.usable();
        });
    participant_.check_usable();
    if (waited == interrupt::Waited::kInterrupted) participant_.interrupted(request);
    if (waited == interrupt::Waited::kTimeout) participant_.no_answer(bound_ms);
}

// ---- the thread

void EtcdWriter::write() {
    Lock lock(participant_.mutex);
    while (write_next(lock)) {
    }
    lock.unlock();
    wire::release_thread_state();
}

// False: the participant is closed or lost.
bool EtcdWriter::write_next(Lock& lock) {
    wake_.wait(lock, [&]() DDP_REQUIRES(participant_.mutex) {
        return !participant_.usable() || !outgoing_.empty() || syncs_asked_ > syncs_done_;
    });
    if (!participant_.usable()) return false;
    const std::uint64_t syncs = syncs_asked_;
    Entries entries = take_batch();
    std::int64_t revision = 0;
    std::string lost, refused;
    {
        const Unlocked meanwhile(lock, participant_.mutex);
        try {
            revision = entries.empty() ? participant_.newest_batch(client_, participant_.patience())
                                       : write_batch(entries);
        } catch (const Error& error) {
            (error.info().code == DDP_ERROR_LIMIT && !entries.empty() ? refused : lost) =
                error.what();
        } catch (const std::exception& error) {
            lost = error.what();
        }
        if (!lost.empty()) participant_.lose(lost);
    }
    if (!lost.empty()) return false;
    if (!refused.empty()) {
        refuse(entries, refused);
    } else {
        syncs_done_ = syncs;
        sync_revision_ = std::max(sync_revision_, revision);
    }
    participant_.changed.notify_all();
    return true;
}

EtcdWriter::Entries EtcdWriter::take_batch() {
    Entries entries;
    for (std::size_t bytes = 0;
         !outgoing_.empty() &&
         (entries.empty() || bytes + outgoing_.front()->bytes.size() <= kBatch);) {
        bytes += outgoing_.front()->bytes.size();
        entries.push_back(std::move(outgoing_.front()));
        outgoing_.pop_front();
    }
    return entries;
}

void EtcdWriter::refuse(const Entries& entries, const std::string& why) {
    for (const auto& entry : entries) {
        entry->outcome = failed(DDP_ERROR_LIMIT, why);
        in_flight_.erase(entry->id);
    }
}

std::int64_t EtcdWriter::write_batch(Entries& entries) {
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

std::int64_t EtcdWriter::commit_piece(std::uint64_t batch, std::uint64_t piece, std::string value) {
    const std::string alive = participant_.alive_key();
    const std::string here = participant_.key(
        etcd_keys::kWatched + EtcdReplica::log_key(participant_.owner, batch, piece));
    const EtcdCommit commit =
        client_.commit({{{alive, ""}, Field::kVersion, Is::kGreater, 0},
                        {{here, ""}, Field::kVersion, Is::kEqual, 0}},
                       {EtcdOperation::put(here, std::move(value)),
                        EtcdOperation::put(participant_.key(etcd_keys::kNewest))},
                       {EtcdOperation::read({alive, ""})}, participant_.patience());
    // Otherwise an earlier attempt has written it.
    if (!commit.succeeded && commit.entries.empty())
        fail(DDP_ERROR_UNAVAILABLE, participant_.was_silent());
    return commit.succeeded ? commit.revision
                            : participant_.newest_batch(client_, participant_.patience());
}

}  // namespace libddp
