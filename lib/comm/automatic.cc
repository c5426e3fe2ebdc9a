#include "comm/automatic.h"

#include "backends/common/topology.h"
#include "backends/gloo/gloo_backend.h"
#include "backends/hierarchical/hierarchical_backend.h"
#include "backends/shm/shm_backend.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

const ddp_backend* choose_backend(const ddp_backend_host& host, std::string& why) {
    check_gloo_options(host);  // also where they are of no use
    if (host.world_size == 1) {
        why = "one rank";
        return shm_backend();
    }
    const auto topology = backend::find_topology(host, Deadline::after_ms(host.timeout_ms));
    if (topology.hosts() == 1) {
        why = "all ranks are on one host";
        return shm_backend();
    }
    if (topology.most() == 1) {
        why = "every rank is on a host of its own";
        return gloo_backend();
    }
    why = str(topology.hosts(), " hosts with ", topology.fewest(), " to ", topology.most(), " ranks each");
    return hierarchical_backend();
}

}  // namespace libddp
