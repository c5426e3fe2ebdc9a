// How the ranks of a group connect with each other.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backends/tcp/listener.h"
#include "backends/tcp/settings.h"
#include "ddp/backend.h"
#include "util/deadline.h"
#include "wire/channel.h"

namespace libddp::tcp {

struct Connections {
    std::shared_ptr<Listener> listener;
    // [rank][lane]; empty for ranks that this one is not connected with.
    std::vector<std::vector<std::unique_ptr<wire::Channel>>> channels;
};

// The ranks that `rank` is connected with: all others, or those at a distance of a power of two,
// which the ring, trees and rounds of log2(world) messages need.
std::vector<int> peers_of(int rank, int world, Algorithm algorithm);

// Connects with these ranks before the deadline. A connection that fails is tried again until then.
// Throws Error: UNAVAILABLE or TIMEOUT with the rank that cannot be reached, MISMATCH, LIMIT, and
// what breaks the group meanwhile.
Connections join(const ddp_backend_host& host, const Settings& settings, const Deadline& deadline);

}  // namespace libddp::tcp
