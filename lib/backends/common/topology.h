// Which ranks of a group share a host.
#pragma once

#include <vector>

#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::backend {

class Topology {
public:
    // host_of[rank]: numbers of hosts, in the order of their lowest ranks.
    Topology(std::vector<int> host_of, int rank);

    int world() const { return static_cast<int>(host_of_.size()); }
    int hosts() const { return static_cast<int>(ranks_.size()); }
    int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
    // The ranks of a host, in order.
    const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }

    // The place of this rank: its host, the ranks there, and its number among them.
    int host() const { return host_; }
    const std::vector<int>& local_ranks() const { return ranks(host_); }
    int local_rank() const { return local_rank_; }
    // How many ranks the smallest and the largest host have.
    int fewest() const { return fewest_; }
    int most() const { return most_; }

private:
    std::vector<int> host_of_;
    std::vector<std::vector<int>> ranks_;
    int host_ = 0, local_rank_ = 0, fewest_ = 0, most_ = 0;
};

// Every rank says where it is. One that cannot share memory counts as a host of its own. Once for a
// group. Throws Error.
Topology find_topology(const ddp_backend_host& host, const Deadline& deadline);

}  // namespace libddp::backend
