// The memory that clients make a store server use beside what the store holds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/outbox.h"
#include "rendezvous/protocol.h"

namespace libddp {

// How much memory clients may make a server use beside what the store holds, and for how long.
// Tests set less.
struct ServerLimits {
    // Answers that one client has not read: above the first, its requests wait; above the second
    // (waits that end all at once) it is disconnected.
    std::size_t unread = std::size_t{64} << 20;
    std::size_t hopeless = limits::kFrame + (std::size_t{64} << 20);
    // Answers that no client has read. Above this, the client with the most is disconnected.
    std::size_t answers = std::size_t{1} << 30;
    // Long requests of which only the beginning has come. Requests for which there is no room wait
    // in the socket.
    std::size_t requests = std::size_t{512} << 20;
    // A client whose request does not become complete keeps others waiting so long, and a second
    // more for each 4 MiB.
    std::chrono::milliseconds incomplete{10'000};
};

// The memory for requests of which only the beginning has come: who holds some, and who waits for
// some, in order.
class RequestRoom {
public:
    using Client = std::uint64_t;

    explicit RequestRoom(std::size_t bytes) : left_(bytes) {}
    // False: there is none now, and give_back() names the client later.
    bool ask(Client client, std::size_t bytes);
    // Takes back what the client holds, or waits for. Returns those who have room now.
    std::vector<Client> give_back(Client client);
    // Clients that have kept others waiting for longer than `bound`, and a second for each 4 MiB.
    std::vector<Client> overdue(std::chrono::steady_clock::duration bound) const;

private:
    struct Held {
        std::size_t bytes;
        std::chrono::steady_clock::time_point since;
    };
    std::size_t left_;
    std::map<Client, Held> held_;
    std::deque<std::pair<Client, std::size_t>> asked_;
};

// Long answers that have not been read. Ranks that wait for one key get one answer.
class Answers {
public:
    SharedBytes share(std::string&& bytes);
    // Bytes of all answers that have not been read, shared ones counted once. Outboxes count theirs
    // there.
    std::size_t& unsent() { return unsent_; }

private:
    std::size_t unsent_ = 0;
    std::array<std::weak_ptr<const std::string>, 8> latest_;
    std::size_t next_ = 0;
};

}  // namespace libddp
