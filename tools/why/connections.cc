#include "why/connections.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "util/error.h"

namespace libddp::record {
namespace {

// A message that is stuck for less may be on its way still, or was sent again once.
constexpr std::int64_t kStuckNs = 800'000'000;
// The time of fewer bytes says nothing: acknowledgments may come 40 ms late.
constexpr std::uint64_t kTellingBytes = 1 << 20;

// One direction.
struct ConnectionState {
    const Position* from = nullptr;
    std::int32_t to_rank = 0;
    const Position* to = nullptr;  // null: it has no record
    Peer counts{};
    // for how long nothing has arrived of what waits; 0: it moves, or nothing waits
    std::int64_t stuck_ns = 0;

    // Bytes a second while some were on their way and the other rank read them; 0: too few to tell.
    double speed() const {
        const double busy = static_cast<double>(counts.busy_ns - counts.unread_ns);
        return counts.arrived < kTellingBytes || busy <= 0
                   ? 0
                   : static_cast<double>(counts.arrived) / busy * 1e9;
    }
};

std::string host_of(const Position* position) {
    return position ? str(" (on ", position->process->identity.host, ")") : "";
}

// All that are recorded.
std::vector<ConnectionState> connection_states(const Group& group) {
    std::vector<ConnectionState> states;
    for (const Position& position : group.recorded) {
        for (const Peer& peer : position.group->peers) {
            if (peer.rank < 0 || peer.rank >= group.world) continue;
            ConnectionState state{&position, peer.rank, group.find(peer.rank), peer, 0};
            if (peer.waiting != 0 && peer.stuck_since_ns != 0)
                state.stuck_ns = std::max<std::int64_t>(0, group.now_ns - peer.stuck_since_ns);
            states.push_back(state);
        }
    }
    return states;
}

// The connection that is stuck longest.
const ConnectionState* find_stuck(const std::vector<ConnectionState>& states) {
    const ConnectionState* longest = nullptr;
    for (const ConnectionState& state : states) {
        if (state.stuck_ns < kStuckNs) continue;
        if (!longest || state.stuck_ns > longest->stuck_ns) longest = &state;
    }
    return longest;
}

// The other rank reads nothing, and so nothing can arrive.
bool is_unread(const ConnectionState& state) {
    return state.counts.unread_ns * 2 > state.counts.busy_ns;
}

std::string ends_text(const ConnectionState& state) {
    return str("rank ", state.from->rank, host_of(state.from), " and rank ", state.to_rank,
               host_of(state.to));
}

std::string stuck_text(const ConnectionState& state) {
    const std::string time = duration_text(static_cast<double>(state.stuck_ns));
    if (is_unread(state))
        return str("rank ", state.to_rank, " has read nothing of what rank ", state.from->rank,
                   " sends for ", time);
    const std::string again =
        state.counts.resent == 0 ? "" : str("; packets sent again: ", state.counts.resent);
    return str("the connection between ", ends_text(state), " is dead: nothing that rank ",
               state.from->rank, " sends has arrived for ", time, " (",
               bytes_text(static_cast<double>(state.counts.waiting)), " wait", again, ")");
}

// Null: nobody knows their speeds.
const ConnectionState* find_slowest(const std::vector<ConnectionState>& states) {
    const ConnectionState* slowest = nullptr;
    for (const ConnectionState& state : states)
        if (state.speed() > 0 && (!slowest || state.speed() < slowest->speed())) slowest = &state;
    return slowest;
}

bool same_ends(const ConnectionState& a, const ConnectionState& b) {
    return std::minmax(a.from->rank, a.to_rank) == std::minmax(b.from->rank, b.to_rank);
}

// Ranks by their hosts; empty where they share one.
std::string hosts_text(const Group& group) {
    std::vector<std::pair<std::string, std::vector<std::int32_t>>> hosts;
    for (const Position& position : group.recorded) {
        const std::string& host = position.process->identity.host;
        auto at = std::find_if(hosts.begin(), hosts.end(),
                               [&](const auto& one) { return one.first == host; });
        if (at == hosts.end()) at = hosts.insert(at, {host, {}});
        at->second.push_back(position.rank);
    }
    if (hosts.size() < 2) return "";
    std::string text;
    for (const auto& [host, ranks] : hosts)
        text += str(text.empty() ? "" : ", ", host, " (", ranks_text(ranks), ")");
    return str(" between the hosts ", text);
}

}  // namespace

std::string connection_text(const Group& group) {
    const auto states = connection_states(group);
    if (const ConnectionState* stuck = find_stuck(states)) return stuck_text(*stuck);
    std::vector<ConnectionState> waiting;
    std::copy_if(states.begin(), states.end(), std::back_inserter(waiting),
                 [](const ConnectionState& state) { return state.counts.waiting != 0; });
    if (const ConnectionState* slow = find_slowest(waiting))
        return str("the connection between ", ends_text(*slow), " is slow: it moves ",
                   bytes_text(slow->speed()), " a second");
    return str("the network", hosts_text(group), " is slow or dead");
}

std::optional<std::string> speed_text(const Group& group) {
    const auto states = connection_states(group);
    const ConnectionState* slowest = find_slowest(states);
    if (!slowest) return std::nullopt;
    std::vector<double> others;
    for (const ConnectionState& state : states)
        if (state.speed() > 0 && !same_ends(state, *slowest)) others.push_back(state.speed());
    std::string text = str("the connection between ", ends_text(*slowest), " moves ",
                           bytes_text(slowest->speed()), " a second");
    if (others.empty()) return text;
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    return str(text, ", others ", bytes_text(*middle));
}

std::optional<std::string> dead_connection_text(const Group& group) {
    const auto states = connection_states(group);
    const ConnectionState* stuck = find_stuck(states);
    return stuck ? std::optional(stuck_text(*stuck)) : std::nullopt;
}

}  // namespace libddp::record
