// How the connections with other ranks fare, as the kernel counts: for the record of the group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backends/tcp/lane.h"
#include "record/layout.h"

namespace libddp::tcp {

// One thread at a time uses it.
class Delivery {
public:
    // Empty if nothing is recorded.
    static std::optional<Delivery> of(const std::vector<std::unique_ptr<Lane>>& lanes);

    // Asks the kernel, unless it was asked a moment ago.
    void look();

private:
    Delivery(std::vector<int> sockets, record::PeerFact* facts)
        : sockets_(std::move(sockets)), facts_(facts) {}

    std::vector<int> sockets_;
    record::PeerFact* facts_;  // one for each socket
    std::int64_t next_ns_ = 0;
};

}  // namespace libddp::tcp
