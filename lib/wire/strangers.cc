#include "wire/strangers.h"

#include <netinet/in.h>

#include <algorithm>

namespace libddp::wire {
namespace {

// A host of its own has as many IPv6 addresses as it likes, of one prefix of 64 bits.
std::string network_of(const SocketAddress& peer) {
    if (peer.storage.ss_family != AF_INET6) return peer.host();
    in6_addr address = reinterpret_cast<const sockaddr_in6*>(&peer.storage)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return peer.host();
    return std::string(reinterpret_cast<const char*>(&address), 8);
}

}  // namespace

void Strangers::Kind::add(std::uint64_t id, const std::string& network) {
    networks.emplace(id, network);
    ++counts[network];
}

std::string Strangers::Kind::remove(std::uint64_t id) {
    const auto found = networks.extract(id);
    if (!found) return "";
    const auto count = counts.find(found.mapped());
    if (--count->second == 0) counts.erase(count);
    return found.mapped();
}

std::optional<std::uint64_t> Strangers::Kind::oldest_beyond(std::size_t share) const {
    const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
    const auto crowd = std::max_element(counts.begin(), counts.end(), fewer);
    if (crowd == counts.end() || crowd->second <= share) return std::nullopt;
    const auto of_it = [&](const auto& one) { return one.second == crowd->first; };
    return std::find_if(networks.begin(), networks.end(), of_it)->first;
}

void Strangers::add(std::uint64_t id, const SocketAddress& peer) {
    silent_.add(id, network_of(peer));
}

void Strangers::remove(std::uint64_t id) {
    promising_.remove(id);
    silent_.remove(id);
}

void Strangers::is_promising(std::uint64_t id) {
    if (const std::string network = silent_.remove(id); !network.empty())
        promising_.add(id, network);
}

std::optional<std::uint64_t> Strangers::oldest(const Kind& kind) {
    if (kind.networks.empty()) return std::nullopt;
    return kind.networks.begin()->first;
}

std::optional<std::uint64_t> Strangers::oldest() const {
    const auto one = oldest(silent_), other = oldest(promising_);
    return one && other ? std::min(one, other) : one ? one : other;
}

std::optional<std::uint64_t> Strangers::oldest_promising() const {
    return oldest(promising_);
}

std::optional<std::uint64_t> Strangers::oldest_of_crowd() const {
    return promising_.oldest_beyond(kShare);
}

std::optional<std::uint64_t> Strangers::next_to_go() const {
    const auto of_crowd = silent_.oldest_beyond(kMost / 2);
    return of_crowd ? of_crowd : oldest(silent_);
}

}  // namespace libddp::wire
