// Which processors each rank of this node may use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "util/processors.h"

namespace ddprun {

enum class Placing {
    kNone,   // all that ddprun itself may use
    kNuma,   // those of a NUMA node, or of several
    kCores,  // cores of its own
};

struct Place {
    std::vector<int> processors;  // as the system numbers them
    int sharers = 1;              // ranks that have the same ones

    int threads() const;
};

// The parts of this machine that ddprun may use.
struct Machine {
    std::vector<std::vector<int>> nodes;  // the processors of each NUMA node
    // the processors of each core, neighbours beside each other
    std::vector<std::vector<int>> cores;
};

// hwloc's view. Throws std::runtime_error if there is none.
Machine find_machine();

// One place a rank, or none at all: then `why_not` says why ranks could not be placed, for a user
// who asked for it.
std::vector<Place> place_ranks(const Machine& machine, Placing how, int ranks,
                               std::string& why_not);

// Lets the calling thread, and with it the processes that it starts, use these processors only
// while it lives; all as before if there are none. Throws std::runtime_error if the system refuses.
class PlaceGuard {
public:
    explicit PlaceGuard(const std::vector<int>& processors);
    ~PlaceGuard();
    PlaceGuard(const PlaceGuard&) = delete;
    PlaceGuard& operator=(const PlaceGuard&) = delete;

private:
    std::optional<libddp::ProcessorSet> before_;
};

}  // namespace ddprun
