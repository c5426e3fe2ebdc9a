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

void Strangers::add(std::uint64_t id, const SocketAddress& peer) {
    const std::string network = network_of(peer);
    silent_.emplace(id, network);
    ++counts_[network];
}

void Strangers::remove(std::uint64_t id) {
    promising_.erase(id);
    auto found = silent_.extract(id);
    if (!found) return;
    auto count = counts_.find(found.mapped());
    if (--count->second == 0) counts_.erase(count);
}

void Strangers::is_promising(std::uint64_t id) {
    if (silent_.count(id) == 0) return;
    remove(id);
    promising_.insert(id);
}

std::optional<std::uint64_t> Strangers::oldest() const {
    std::optional<std::uint64_t> id = oldest_promising();
    if (!silent_.empty()) id = std::min(id.value_or(silent_.begin()->first), silent_.begin()->first);
    return id;
}

std::optional<std::uint64_t> Strangers::oldest_promising() const {
    if (promising_.empty()) return std::nullopt;
    return *promising_.begin();
}

std::optional<std::uint64_t> Strangers::next_to_go() const {
    for (const auto& [network, count] : counts_) {
        if (count <= kMost / 2) continue;
        for (const auto& [id, its] : silent_)
            if (its == network) return id;
    }
    if (silent_.empty()) return std::nullopt;
    return silent_.begin()->first;
}

}  // namespace libddp::wire
