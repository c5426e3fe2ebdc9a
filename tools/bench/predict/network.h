// The cost of a collective on a network that a few numbers describe: the alpha-beta model of
// Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
// 2005.
#pragma once

#include <ddp/backend.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace bench {

// How ranks are connected. Gigabytes are 10^9 bytes.
struct Network {
    std::string name;
    double latency_us = 0;        // one way between two hosts, with the software on both
    double message_us = 0;        // processor time of the sender for each message
    double host_gb_s = 0;         // each way, of one host
    double local_latency_us = 0;  // of a collective among the ranks of a host
    double local_gb_s = 0;        // vectors that the ranks of a host reduce
};

// "1gbit", "10gbit", "25gbit", "100gbit", "infiniband" or "nvlink-ib", then overrides:
// "25gbit:latency-us=12:host-gb-s=2.8". Throws std::invalid_argument.
Network find_network(const std::string& text);
// The names, for messages.
std::string network_names();

// Ranks on hosts, each host with as many.
struct Cluster {
    int world = 1;
    int ranks_a_host = 1;
    int hosts() const { return (world + ranks_a_host - 1) / ranks_a_host; }
    int ranks_here() const { return world < ranks_a_host ? world : ranks_a_host; }
};

struct Cost {
    double latency_ms = 0;   // the same beside other collectives
    double transfer_ms = 0;  // while no other collective uses the network
    double all() const { return latency_ms + transfer_ms; }
};

// bytes: the input of each rank; of an allgather it must not depend on the world. Between hosts
// this is the cheapest of three algorithms: all to all, ring, and recursive halving and doubling.
Cost cost_of(const Network& network, const Cluster& cluster, ddp_collective_kind kind,
             double bytes);

// Measured times of allreduces of several sizes.
class Measured {
public:
    // Lines of JSON, as `ddp-bench allreduce --json` prints them for one world and one setting.
    // Throws std::invalid_argument.
    explicit Measured(const std::vector<std::string>& lines);
    int world() const { return world_; }
    // Interpolates between two sizes, and extrapolates beyond them.
    Cost allreduce(double bytes) const;

private:
    int world_ = 0;
    double latency_ms_ = 0;  // of a message without bytes
    std::map<double, double> ms_;
};

}  // namespace bench
