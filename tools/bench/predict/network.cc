#include "predict/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace bench {
namespace {

// Latencies of Ethernet are those of TCP through the kernel. Frames and headers leave 94 % of a
// nominal rate.
const Network kNetworks[] = {
    {"1gbit", 40, 6, 0.117, 12, 4},  {"10gbit", 25, 6, 1.17, 12, 4},
    {"25gbit", 20, 6, 2.9, 12, 4},   {"100gbit", 15, 6, 11.5, 12, 8},
    {"infiniband", 3, 1, 23, 12, 8}, {"nvlink-ib", 4, 1, 180, 10, 120},
};

struct Override {
    const char* key;
    double Network::*value;
};
constexpr Override kOverrides[] = {{"latency-us", &Network::latency_us},
                                   {"message-us", &Network::message_us},
                                   {"host-gb-s", &Network::host_gb_s},
                                   {"local-latency-us", &Network::local_latency_us},
                                   {"local-gb-s", &Network::local_gb_s}};

double positive(const std::string& text, const std::string& where) {
    double value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, code] = std::from_chars(text.data(), last, value);
    if (code != std::errc() || end != last || !(value > 0) || !std::isfinite(value))
        throw std::invalid_argument("--network: '" + where + "' has no number above 0");
    return value;
}

void override_with(Network& network, const std::string& text) {
    const std::size_t equal = text.find('=');
    const std::string key = text.substr(0, equal);
    for (const Override& known : kOverrides) {
        if (key != known.key) continue;
        network.*known.value =
            positive(equal == std::string::npos ? "" : text.substr(equal + 1), text);
        return;
    }
    std::string keys;
    for (const Override& known : kOverrides)
        keys += (keys.empty() ? "" : ", ") + std::string(known.key);
    throw std::invalid_argument("--network: '" + key + "' is none of " + keys);
}

double ms_of_bytes(double bytes, double gb_s) {
    return bytes / gb_s * 1e-6;
}

// A vector of so many bytes on each host, which is reduced and then handed to all (parts: 2), or
// only one of the two.
Cost between_hosts(const Network& network, int hosts, double bytes, int parts) {
    if (hosts == 1) return {};
    const double others = hosts - 1;
    const double all_at_once = parts * (network.latency_us + others * network.message_us);
    const double ring = parts * others * network.latency_us;
    const double doubling = parts * std::ceil(std::log2(hosts)) * network.latency_us;
    return {std::min({all_at_once, ring, doubling}) * 1e-3,
            parts * ms_of_bytes(bytes * others / hosts, network.host_gb_s)};
}

}  // namespace

std::string network_names() {
    std::string names;
    for (const Network& network : kNetworks) names += (names.empty() ? "" : ", ") + network.name;
    return names;
}

Network find_network(const std::string& text) {
    const std::string name = text.substr(0, text.find(':'));
    const auto found = std::find_if(std::begin(kNetworks), std::end(kNetworks),
                                    [&](const Network& network) { return network.name == name; });
    if (found == std::end(kNetworks))
        throw std::invalid_argument("--network: '" + name + "' is none of " + network_names());
    Network network = *found;
    for (std::size_t at = name.size(); at < text.size();) {
        const std::size_t end = std::min(text.find(':', at + 1), text.size());
        override_with(network, text.substr(at + 1, end - at - 1));
        at = end;
    }
    return network;
}

Cost cost_of(const Network& network, const Cluster& cluster, ddp_collective_kind kind,
             double bytes) {
    if (cluster.world == 1) return {};
    const int parts = kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_BARRIER ? 2 : 1;
    // The vector that a host gives or gets in one of these parts.
    const bool gathers = kind == DDP_COLLECTIVE_ALLGATHER;
    const double vector = kind == DDP_COLLECTIVE_BARRIER ? 0
                          : gathers                      ? bytes * cluster.world
                                                         : bytes;
    // No rank of a host can give for the others.
    const bool each = kind == DDP_COLLECTIVE_ALL_TO_ALL;
    Cost cost = between_hosts(network, cluster.hosts(),
                              each ? vector * cluster.ranks_here() : vector, parts);
    if (kind == DDP_COLLECTIVE_BROADCAST && cluster.hosts() > 1)  // each host receives all of it
        cost.transfer_ms = ms_of_bytes(vector, network.host_gb_s);
    if (cluster.ranks_here() > 1) {
        cost.latency_ms += network.local_latency_us * 1e-3;
        cost.transfer_ms += ms_of_bytes(vector, network.local_gb_s) * parts / 2;
    }
    return cost;
}

Measured::Measured(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
        const auto row = nlohmann::json::parse(line, nullptr, false);
        const auto number = [&](const char* key) {
            const bool is_one = row.contains(key) && row[key].is_number();
            return is_one ? row[key].get<double>() : 0;
        };
        const bool is_row = row.is_object() && row.contains("name") && row["name"] == "allreduce";
        const double world = is_row ? number("world") : 0, bytes = is_row ? number("bytes") : 0,
                     ms = is_row ? number("median_ms") : 0;
        if (!(world >= 1 && bytes > 0 && ms > 0))
            throw std::invalid_argument(
                "--measured: a line is not of `ddp-bench allreduce --json`: " + line);
        if (world_ != 0 && world != world_)
            throw std::invalid_argument("--measured: the lines are of worlds of " +
                                        std::to_string(world_) + " and of " +
                                        std::to_string(static_cast<int>(world)));
        world_ = static_cast<int>(world);
        if (!ms_.emplace(bytes, ms).second)
            throw std::invalid_argument(
                "--measured: the size of " + std::to_string(static_cast<std::int64_t>(bytes)) +
                " bytes comes twice; give the lines of one backend and one kind of memory");
    }
    if (ms_.size() < 2)
        throw std::invalid_argument("--measured: allreduces of two sizes at least are needed");
    const auto first = ms_.begin(), second = std::next(first);
    const double slope = (second->second - first->second) / (second->first - first->first);
    latency_ms_ = std::clamp(first->second - slope * first->first, 0.0, first->second);
}

Cost Measured::allreduce(double bytes) const {
    const auto least = ms_.begin();
    if (bytes <= least->first)
        return {latency_ms_, (least->second - latency_ms_) * bytes / least->first};
    auto above = ms_.lower_bound(bytes);
    if (above == ms_.end()) --above;
    const auto below = std::prev(above);
    // Where a larger message was faster, chance was stronger than the size.
    const double slope =
        std::max(0.0, (above->second - below->second) / (above->first - below->first));
    return {latency_ms_,
            std::max(0.0, below->second + slope * (bytes - below->first) - latency_ms_)};
}

}  // namespace bench
