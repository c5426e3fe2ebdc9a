// One rank's end of a group on several hosts: sums on each host in shared memory, and slices of the
// sums between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/common/failure.h"
#include "backends/common/topology.h"
#include "backends/hierarchical/rail.h"
#include "backends/shm/team.h"
#include "ddp/backend.h"

namespace libddp::hierarchical {

// As many rails connect the hosts as the smallest host has ranks: its ranks 0, 1, ... each with
// those of the same place elsewhere. Each rail carries its own slice of a message, so a message
// crosses the wire once for each host and not once for each rank. The first failure ends the
// transport.
class HierarchicalTransport {
public:
    explicit HierarchicalTransport(const ddp_backend_host& host);

    std::uint32_t capabilities() const { return capabilities_; }
    void run(const ddp_collective& c);
    void abort();  // any thread
    void leave();
    void* allocate(std::size_t bytes, ddp_device) {
        return team_ ? team_->arena().allocate(bytes) : nullptr;
    }
    void deallocate(void* memory) { team_->arena().deallocate(memory); }

private:
    std::uint32_t what_rails_can(const ddp_backend_host& host) const;
    void dispatch(ddp_collective c);
    void agree(const ddp_collective& c);
    void allreduce(const ddp_collective& c);
    void broadcast(const ddp_collective& c);
    void allgather(const ddp_collective& c);
    void reduce_scatter(const ddp_collective& c);
    void all_to_all(const ddp_collective& c);
    void barrier(const ddp_collective& c);
    bool leads() const { return topology_.local_rank() == 0; }
    void on_host(ddp_collective c);
    template <class Operation>
    void on_host_do(Operation operation);
    // Tells the other ranks of a failure.
    void tell(const ErrorInfo& failure);

    const backend::Topology topology_;
    backend::Failure failure_;
    std::unique_ptr<shm::Team> team_;  // null in a world of one
    std::unique_ptr<Rail> rail_;       // null on ranks that have none
    std::uint32_t capabilities_ = 0;
    bool rails_fuse_scale_ = false;
};

}  // namespace libddp::hierarchical

namespace libddp {

// The built-in backend "hierarchical": shared memory on each host, tcp between hosts.
const ddp_backend* hierarchical_backend();

}  // namespace libddp
