#include "backends/shm/control.h"

#include "backends/common/keys.h"
#include "backends/shm/handoff.h"
#include "util/error.h"

namespace libddp::shm {

Control::Control(const ddp_backend_host& host, const TeamOptions& options, const Deadline& deadline)
    : layout_(options.size, options.staging_bytes, page_size()) {
    const backend::Keys keys(host, options.prefix);
    if (options.rank != 0) {
        segment_ = Segment(receive_descriptor(keys.get("address", deadline), deadline));
        mapping_ = segment_.map(0, layout_.control_bytes());
        keys.set(str("attached/", options.rank), "1");
        return;
    }
    segment_.reserve(0, layout_.control_bytes());
    mapping_ = segment_.map(0, layout_.control_bytes());
    const HandoffServer server(segment_.fd());
    // With the token in it: only ranks that the store lets in get the memory.
    keys.set("address", server.address());
    for (int rank = 1; rank < options.size; ++rank) keys.get(str("attached/", rank), deadline);
}

void Control::wake_all() const {
    for (Counter* counter : {&shared().arrivals, &shared().barrier, &shared().completed})
        counter->wake_all();
}

}  // namespace libddp::shm
