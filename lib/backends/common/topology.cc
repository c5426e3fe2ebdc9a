#include "backends/common/topology.h"

#include <algorithm>
#include <map>

#include "backends/common/keys.h"
#include "util/host.h"
#include "util/text.h"

namespace libddp::backend {
namespace {

constexpr std::int64_t kRank0FirstMs = 300;

std::string host_of_rank(const Keys& keys, int rank, const Deadline& deadline) {
    try {
        return keys.get(std::to_string(rank), deadline);
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        throw Error(ErrorInfo{DDP_ERROR_TIMEOUT,
                              str("rank ", rank, " did not say in time which host it is on"),
                              rank});
    }
}

// Reads rank 0's list: hosts are numbered in the order of their lowest ranks.
std::vector<int> read_hosts(const std::string& told, int world) {
    TextIn text(told);
    std::vector<int> host_of;
    int hosts = 0;
    for (int number; text >> number; host_of.push_back(number)) {
        if (number < 0 || number > hosts) break;
        hosts = std::max(hosts, number + 1);
    }
    if (!text.eof() || host_of.size() != static_cast<std::size_t>(world))
        fail(DDP_ERROR_IO, "'", told, "' does not say which host each of ", world, " ranks is on");
    return host_of;
}

}  // namespace

Topology::Topology(std::vector<int> host_of, int rank) : host_of_(std::move(host_of)) {
    ranks_.resize(static_cast<std::size_t>(*std::max_element(host_of_.begin(), host_of_.end())) +
                  1);
    for (std::size_t r = 0; r < host_of_.size(); ++r)
        ranks_[static_cast<std::size_t>(host_of_[r])].push_back(static_cast<int>(r));
    host_ = this->host_of(rank);
    const auto& local = local_ranks();
    local_rank_ = static_cast<int>(std::find(local.begin(), local.end(), rank) - local.begin());
    const auto smaller = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    fewest_ = static_cast<int>(std::min_element(ranks_.begin(), ranks_.end(), smaller)->size());
    most_ = static_cast<int>(std::max_element(ranks_.begin(), ranks_.end(), smaller)->size());
}

// Rank 0 collects and tells, so that the store answers a few questions a rank and not one for each
// pair.
Topology find_topology(const ddp_backend_host& host, const Deadline& deadline) {
    const Keys keys(host, "topology/");
    std::vector<int> host_of;
    if (host.rank == 0) {
        std::map<std::string, int> known;
        std::string text;
        for (int rank = 0; rank < host.world_size; ++rank) {
            const std::string id = rank == 0 ? host_id() : host_of_rank(keys, rank, deadline);
            host_of.push_back(known.emplace(id, static_cast<int>(known.size())).first->second);
            text += std::to_string(host_of.back()) + " ";
        }
        keys.set("hosts", text);
    } else {
        keys.set(std::to_string(host.rank), host_id());
        // Rank 0 knows who is missing, so it is the first to say that time is over.
        host_of = read_hosts(
            keys.get("hosts", Deadline::after_ms(deadline.remaining_ms() + kRank0FirstMs)),
            host.world_size);
    }
    return Topology(std::move(host_of), host.rank);
}

}  // namespace libddp::backend
