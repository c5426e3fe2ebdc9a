#include "rendezvous/etcd/participant.h"

#include <algorithm>
#include <random>
#include <utility>

namespace libddp {
namespace {

constexpr std::int64_t kPatienceMs = 10'000;

// The key behind all that begin with `prefix`, which ends with a letter.
std::string end_of(std::string prefix) {
    ++prefix.back();
    return prefix;
}

}  // namespace

std::uint64_t random_number() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

EtcdParticipant::EtcdParticipant(const EtcdAddress& where, std::string called,
                                 std::function<void()> on_lost_)
    : address(where),
      name(std::move(called)),
      root("/ddp/" + address.name + "//"),
      owner(random_number()),
      endpoint(std::make_shared<EtcdEndpoint>(0)),
      on_lost(std::move(on_lost_)) {}

EtcdRange EtcdParticipant::below(const std::string& rest) const {
    return {key(rest), end_of(key(rest))};
}

EtcdRange EtcdParticipant::contents() const {
    return {key(etcd_keys::kHead), end_of(key(etcd_keys::kWatched + std::string("log/")))};
}

EtcdRange EtcdParticipant::snapshot(std::uint64_t id) const {
    constexpr std::size_t kOfOne = 17;  // its number and a slash
    return below(etcd_keys::kSnapshots + EtcdReplica::snapshot_key(id, 0).substr(0, kOfOne));
}

std::int64_t EtcdParticipant::patience_ms() const {
    return std::max(kPatienceMs, 2 * address.ttl_s * 1000);
}

Deadline EtcdParticipant::patience() const {
    return Deadline::after_ms(patience_ms());
}

std::string EtcdParticipant::was_silent() const {
    return str("this process was silent for longer than ", address.ttl_s,
               " s, so that it counts as dead (ttl)");
}

std::int64_t EtcdParticipant::newest_batch(EtcdClient& client, const Deadline& deadline) const {
    const EtcdRead read = client.read({key(etcd_keys::kNewest), ""}, 0, 0, deadline);
    return read.entries.empty() ? 0 : read.entries.front().mod_revision;
}

void EtcdParticipant::check_usable() const {
    if (closed) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (lost) throw Error(*lost);
}

void EtcdParticipant::lose(const std::string& reason) {
    const Lock lock(mutex);
    if (!usable()) return;
    lost = {DDP_ERROR_UNAVAILABLE, str("the store at ", name, " was lost: ", reason)};
    changed.notify_all();
    on_lost();
}

void EtcdParticipant::lose_if_final(const Error& error) {
    const auto code = error.info().code;
    if (code == DDP_ERROR_PERMISSION_DENIED || code == DDP_ERROR_UNSUPPORTED ||
        code == DDP_ERROR_IO)
        lose(error.what());
}

void EtcdParticipant::no_answer(std::int64_t within_ms) const {
    fail(DDP_ERROR_TIMEOUT, "the store at ", name, " did not answer within ", within_ms, " ms");
}

void EtcdParticipant::interrupted(const Request& request) const {
    fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store at ", name,
         " was interrupted");
}

}  // namespace libddp
