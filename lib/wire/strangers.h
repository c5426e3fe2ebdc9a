// Chooses the strangers that may stay when too many come: clients that have not proved anything
// yet. No sockets here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "wire/sockets.h"

namespace libddp::wire {

// Connections are known by numbers that grow.
class Strangers {
public:
    static constexpr std::size_t kMost = 256;
    // Places for the promising ones of one network, where many others come.
    static constexpr std::size_t kShare = kMost / 8;

    void add(std::uint64_t id, const SocketAddress& peer);
    void remove(std::uint64_t id);
    // It has shown that it knows the key: only a recording that nobody has used yet could have said
    // the same.
    void is_promising(std::uint64_t id);

    bool too_many() const { return silent_.networks.size() + promising_.networks.size() > kMost; }
    // Then nobody else is let in until some have proved themselves: promising ones do not have to
    // make room.
    bool busy() const { return promising_.networks.size() >= kMost / 2; }
    std::optional<std::uint64_t> oldest() const;
    std::optional<std::uint64_t> oldest_promising() const;
    // The oldest promising one of the network with the most of them, if that network has more than
    // kShare.
    std::optional<std::uint64_t> oldest_of_crowd() const;
    // The stranger that has to make room: the oldest that is not promising. If one network has more
    // than half of kMost, the oldest of that network.
    std::optional<std::uint64_t> next_to_go() const;

private:
    struct Kind {
        std::map<std::uint64_t, std::string> networks;  // of each
        std::map<std::string, std::size_t> counts;      // of each network

        void add(std::uint64_t id, const std::string& network);
        // Empty: it is not there.
        std::string remove(std::uint64_t id);
        // The oldest one of the network with the most, if that has more than so many.
        std::optional<std::uint64_t> oldest_beyond(std::size_t share) const;
    };
    static std::optional<std::uint64_t> oldest(const Kind& kind);

    Kind silent_;
    Kind promising_;
};

}  // namespace libddp::wire
