#include "backends/hierarchical/rail.h"

#include <utility>
#include <vector>

#include "record/recorder.h"
#include "util/error.h"

namespace libddp::hierarchical {
namespace {

ddp_backend_failure no_failure() {
    ddp_backend_failure failure{};
    failure.rank = -1;
    return failure;
}

}  // namespace

Rail::Rail(const ddp_backend_host& host, const ddp_backend* backend,
           const backend::Topology& topology, int number)
    : outer_(host),
      backend_(backend),
      topology_(topology),
      number_(number),
      prefix_(str("rail/", number, "/")) {
    host_ = host;
    host_.struct_size = sizeof host_;
    host_.handle = this;
    host_.rank = topology.host();
    host_.world_size = topology.hosts();
    host_.store_set = &store_set;
    host_.store_get = &store_get;
    host_.log = &write_log;
    if (host.interrupted) host_.interrupted = &interrupted;
    if (host.store_delete) host_.store_delete = &store_delete;
    std::vector<std::int32_t> ranks;
    for (int on = 0; on < topology.hosts(); ++on)
        ranks.push_back(topology.ranks(on)[static_cast<std::size_t>(number)]);
    const record::Connecting connecting(std::move(ranks));
    auto failure = no_failure();
    check(backend_->create(&host_, &transport_, &failure), failure);
}

Rail::~Rail() {
    backend_->destroy(transport_);
}

void Rail::match(const ddp_collective& c) const {
    if (c.carried) {
        ddp_collective meeting = c;
        meeting.kind = DDP_COLLECTIVE_BARRIER;
        meeting.counts = nullptr;
        auto failure = no_failure();
        return check(backend_->run(transport_, &meeting, &failure), failure);
    }
    if (c.signature_size == 0 || !backend_->match) return;
    auto failure = no_failure();
    std::int32_t other = -1;
    const ddp_status status = backend_->match(transport_, c.signature, c.theirs, c.signature_size,
                                              c.timeout_ms, &other, &failure);
    if (status == DDP_ERROR_MISMATCH) failure.rank = other;
    check(status, failure);
}

void Rail::run(ddp_collective c) const {
    c.signature_size = 0;  // match() has compared
    auto failure = no_failure();
    check(backend_->run(transport_, &c, &failure), failure);
}

// The backend takes a host for a rank, and says so in its sentence.
void Rail::check(ddp_status status, const ddp_backend_failure& failure) const {
    if (status == DDP_OK) return;
    const bool known = failure.rank >= 0 && failure.rank < topology_.hosts();
    const int rank = known ? topology_.ranks(failure.rank)[static_cast<std::size_t>(number_)] : -1;
    const char* what = status == DDP_ERROR_TIMEOUT       ? " did not come before the timeout"
                       : status == DDP_ERROR_RANK_FAILED ? " left the group"
                       : status == DDP_ERROR_MISMATCH    ? " is about to do something else"
                                                         : nullptr;
    if (known && what)
        throw Error(ErrorInfo{status, str("between hosts: rank ", rank, what), rank});
    throw Error(
        ErrorInfo{status, str("between hosts, whose numbers these are: ", failure.message), rank});
}

ddp_status Rail::store_set(void* self, const char* key, const void* value, std::size_t size,
                           ddp_backend_failure* failure) {
    const Rail& rail = *static_cast<Rail*>(self);
    return rail.outer_.store_set(rail.outer_.handle, (rail.prefix_ + key).c_str(), value, size,
                                 failure);
}

ddp_status Rail::store_get(void* self, const char* key, std::int64_t timeout_ms, void** value,
                           std::size_t* size, ddp_backend_failure* failure) {
    const Rail& rail = *static_cast<Rail*>(self);
    return rail.outer_.store_get(rail.outer_.handle, (rail.prefix_ + key).c_str(), timeout_ms,
                                 value, size, failure);
}

ddp_status Rail::store_delete(void* self, const char* key, ddp_backend_failure* failure) {
    const Rail& rail = *static_cast<Rail*>(self);
    return rail.outer_.store_delete(rail.outer_.handle, (rail.prefix_ + key).c_str(), failure);
}

std::int32_t Rail::interrupted(void* self) {
    const Rail& rail = *static_cast<Rail*>(self);
    return rail.outer_.interrupted(rail.outer_.handle);
}

void Rail::write_log(void* self, std::int32_t level, const char* message) {
    const Rail& rail = *static_cast<Rail*>(self);
    rail.outer_.log(rail.outer_.handle, level, message);
}

}  // namespace libddp::hierarchical
