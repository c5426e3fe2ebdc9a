#include "ddp/all_to_all.h"

#include <memory>
#include <vector>

#include "capi/collective.h"
#include "capi/guard.h"
#include "comm/group.h"

using namespace libddp;

namespace {

std::shared_ptr<const std::vector<std::uint64_t>> read_counts(const std::uint64_t* counts,
                                                              std::size_t n, const char* name) {
    require(counts, name);
    return std::make_shared<const std::vector<std::uint64_t>>(counts, counts + n);
}

}  // namespace

ddp_status ddp_all_to_all(ddp_group* group, const void* send, void* recv, size_t count,
                          ddp_dtype dtype, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_all_to_all", [&] {
        Collective c{DDP_COLLECTIVE_ALL_TO_ALL, send, recv, count, dtype};
        start_collective(group, c, work);
    });
}

ddp_status ddp_all_to_allv(ddp_group* group, const void* send, void* recv,
                           const uint64_t* send_counts, const uint64_t* recv_counts, size_t n,
                           ddp_dtype dtype, ddp_work** work, ddp_error** error) {
    return guard(error, "ddp_all_to_allv", [&] {
        const std::int32_t world = require(group, "group")->impl->world();
        if (n != static_cast<std::size_t>(world))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "n is ", n, ", but the group has ", world,
                      " ranks");
        Collective c{DDP_COLLECTIVE_ALL_TO_ALL, send, recv, 0, dtype};
        c.send_counts = read_counts(send_counts, n, "send_counts");
        c.recv_counts = read_counts(recv_counts, n, "recv_counts");
        start_collective(group, c, work);
    });
}
