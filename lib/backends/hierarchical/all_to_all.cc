// All_to_all in three steps: on each host to the ranks whose rails carry the parts, between hosts,
// and on each host to the ranks that get them. A part for another host crosses the wire once.
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "backends/hierarchical/transport.h"
#include "kernels/parts.h"

namespace libddp::hierarchical {
namespace {

using Counts = std::vector<std::uint64_t>;
using Bytes = std::vector<std::byte>;

// The parts that travel together in one of the steps.
class Route {
public:
    Route(const ddp_collective& c, const backend::Topology& topology)
        : exchanged_(c, topology.world()), topology_(topology) {}

    // Whether a rail carries the parts from one host to another. It carries all of them.
    bool is_on_rail(int from, int to, int rail) const {
        return from != to && (from + to) % topology_.fewest() == rail;
    }

    std::size_t bytes(int from, int to) const { return exchanged_.bytes(from, to); }
    std::size_t between_hosts(int from, int to) const {
        std::size_t sum = 0;
        for (const int sender : topology_.ranks(from))
            for (const int receiver : topology_.ranks(to)) sum += bytes(sender, receiver);
        return sum;
    }
    // Between two ranks of this host, by their places on it, in the first and in the last step.
    std::size_t to_rail(int local, int carrier) const {
        std::size_t sum = bytes(rank(local), rank(carrier));
        each_host_of(carrier, [&](int host, bool outward) {
            if (!outward) return;
            for (const int receiver : topology_.ranks(host)) sum += bytes(rank(local), receiver);
        });
        return sum;
    }
    std::size_t from_rail(int carrier, int local) const {
        std::size_t sum = 0;
        each_host_of(carrier, [&](int host, bool outward) {
            if (outward) return;
            for (const int sender : topology_.ranks(host)) sum += bytes(sender, rank(local));
        });
        return sum;
    }
    // The other hosts with which this one exchanges parts over a rail, in order.
    void each_host_of(int carrier, const std::function<void(int host, bool outward)>& call) const {
        for (int host = 0; host < topology_.hosts(); ++host) {
            if (is_on_rail(topology_.host(), host, carrier)) call(host, true);
            if (is_on_rail(host, topology_.host(), carrier)) call(host, false);
        }
    }
    int rank(int local) const { return topology_.local_ranks()[static_cast<std::size_t>(local)]; }

private:
    const Exchanged exchanged_;
    const backend::Topology& topology_;
};

// counts[i * n + j] = bytes_of(i, j).
template <class BytesOf>
Counts matrix(int n, BytesOf bytes_of) {
    Counts counts;
    for (int from = 0; from < n; ++from)
        for (int to = 0; to < n; ++to) counts.push_back(bytes_of(from, to));
    return counts;
}

// One step, among ranks or hosts of which this one is `own`.
class Step {
public:
    Step(const ddp_collective& like, Counts counts, int own)
        : counts_(std::move(counts)), c_(like) {
        c_.kind = DDP_COLLECTIVE_ALL_TO_ALL;
        c_.dtype = DDP_U8;
        c_.counts = counts_.data();
        c_.count = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
        c_.signature_size = 0;
        const auto mine = static_cast<std::size_t>(own);
        std::size_t sent = 0, received = 0, n = 0;
        while (n * n < counts_.size()) ++n;
        for (std::size_t other = 0; other < n; ++other) {
            places_.push_back(received);
            sent += static_cast<std::size_t>(counts_[mine * n + other]);
            received += static_cast<std::size_t>(counts_[other * n + mine]);
        }
        send_.reserve(sent);
        recv_.resize(received);
    }

    // Bytes that are given go to the first rank, and on to the next when it has all.
    void give(const std::byte* data, std::size_t bytes) {
        send_.insert(send_.end(), data, data + bytes);
    }
    // The next bytes that came from a rank.
    const std::byte* take(int from, std::size_t bytes) {
        std::size_t& place = places_[static_cast<std::size_t>(from)];
        place += bytes;
        return recv_.data() + (place - bytes);
    }
    const std::byte* received(int from) const {
        return recv_.data() + places_[static_cast<std::size_t>(from)];
    }
    const ddp_collective& collective() {
        c_.send = send_.data();
        c_.recv = recv_.data();
        return c_;
    }

private:
    const Counts counts_;
    ddp_collective c_;
    Bytes send_, recv_;
    std::vector<std::size_t> places_;
};

}  // namespace

void HierarchicalTransport::all_to_all(const ddp_collective& c) {
    if (c.count == 0) return;
    const Route route(c, topology_);
    const Exchanged exchanged(c, topology_.world());
    const int size = team_->size(), place = topology_.local_rank(), me = route.rank(place);
    const ddp_collective input = exchanged.input(me);
    Counts counts;
    const ddp_collective output = exchanged.output(me, counts);
    const auto keep = [&](int from, const std::byte* data) {
        const std::size_t bytes = route.bytes(from, me);
        if (bytes > 0) std::memcpy(part_of(output, c.recv, from), data, bytes);
    };

    // To each rank of this host its own part, then what its rail carries.
    Step first(c, matrix(size, [&](int from, int to) { return route.to_rail(from, to); }), place);
    const auto give = [&](int to) { first.give(part_of(input, c.send, to), route.bytes(me, to)); };
    for (int carrier = 0; carrier < size; ++carrier) {
        give(route.rank(carrier));
        route.each_host_of(carrier, [&](int host, bool outward) {
            if (!outward) return;
            for (const int to : topology_.ranks(host)) give(to);
        });
    }
    on_host(first.collective());
    for (int local = 0; local < size; ++local)
        keep(route.rank(local), first.take(local, route.bytes(route.rank(local), me)));

    Step last(c, matrix(size, [&](int from, int to) { return route.from_rail(from, to); }), place);
    if (rail_) {
        Step between(
            c,
            matrix(topology_.hosts(),
                   [&](int from, int to) {
                       return route.is_on_rail(from, to, place) ? route.between_hosts(from, to) : 0;
                   }),
            topology_.host());
        route.each_host_of(place, [&](int host, bool outward) {
            if (!outward) return;
            for (int local = 0; local < size; ++local)
                for (const int to : topology_.ranks(host)) {
                    const std::size_t bytes = route.bytes(route.rank(local), to);
                    between.give(first.take(local, bytes), bytes);
                }
        });
        rail_->run(between.collective());
        for (int local = 0; local < size; ++local)
            route.each_host_of(place, [&](int host, bool outward) {
                if (outward) return;
                const std::byte* part = between.received(host);
                for (const int from : topology_.ranks(host))
                    for (int to = 0; to < size; ++to) {
                        const std::size_t bytes = route.bytes(from, route.rank(to));
                        if (to == local) last.give(part, bytes);
                        part += bytes;
                    }
            });
    }
    on_host(last.collective());
    for (int carrier = 0; carrier < size; ++carrier)
        route.each_host_of(carrier, [&](int host, bool outward) {
            if (outward) return;
            for (const int from : topology_.ranks(host))
                keep(from, last.take(carrier, route.bytes(from, me)));
        });
}

}  // namespace libddp::hierarchical
