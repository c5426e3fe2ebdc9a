// Who of those that have not proved anything yet may stay when too many come. No sockets here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "wire/sockets.h"

namespace libddp::wire {

// Connections are known by numbers that grow.
class Strangers {
public:
    static constexpr std::size_t kMost = 256;

    void add(std::uint64_t id, const SocketAddress& peer);
    void remove(std::uint64_t id);
    // It has shown that it knows the key: only a recording could have said the same.
    void is_promising(std::uint64_t id);

    bool too_many() const { return silent_.size() + promising_.size() > kMost; }
    // Then nobody else is let in until some have proved themselves: promising ones do not have to make room.
    bool busy() const { return promising_.size() >= kMost / 2; }
    std::optional<std::uint64_t> oldest() const;
    std::optional<std::uint64_t> oldest_promising() const;
    // Who has to make room: the oldest that is not promising, but if one network has more than half of kMost, the oldest of that network.
    std::optional<std::uint64_t> next_to_go() const;

private:
    std::map<std::uint64_t, std::string> silent_;  // and their networks
    std::map<std::string, std::size_t> counts_;    // of silent ones, of each network
    std::set<std::uint64_t> promising_;
};

}  // namespace libddp::wire
