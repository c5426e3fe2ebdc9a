#include "placement.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>

namespace ddprun {
namespace {

// A rank computes on one, and communicates on the other: on a single core each allreduce takes a
// turn of the scheduler.
constexpr std::size_t kLeastCores = 2;

struct FreeTopology {
    void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, FreeTopology>;

struct FreeBitmap {
    void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

Topology load_topology() {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) throw std::runtime_error("hwloc cannot start");
    Topology topology(raw);
    if (hwloc_topology_load(raw) != 0)
        throw std::runtime_error("hwloc cannot find out what this machine has");
    // ddprun's own processors may be fewer: those of a container, or what taskset left.
    const Bitmap own(hwloc_bitmap_alloc());
    if (hwloc_topology_is_thissystem(raw) &&
        hwloc_get_proc_cpubind(raw, getpid(), own.get(), 0) == 0)
        hwloc_topology_restrict(raw, own.get(), HWLOC_RESTRICT_FLAG_REMOVE_CPULESS);
    return topology;
}

// The processors of each object of a type. Nodes that only hold memory have none, and two may share
// them.
std::vector<std::vector<int>> processors_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
    std::vector<std::vector<int>> found;
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(topology, type, object));) {
        std::vector<int> processors;
        for (int i = -1; (i = hwloc_bitmap_next(object->cpuset, i)) >= 0;) processors.push_back(i);
        if (!processors.empty() && (found.empty() || found.back() != processors))
            found.push_back(std::move(processors));
    }
    return found;
}

std::string count(std::size_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

bool alike(const std::vector<std::vector<int>>& groups) {
    return std::all_of(groups.begin(), groups.end(),
                       [&](const auto& group) { return group.size() == groups.front().size(); });
}

// Rank i of n gets groups from i * k / n to (i + 1) * k / n, and at least one.
std::vector<Place> divide(const std::vector<std::vector<int>>& groups, std::size_t ranks) {
    std::vector<Place> places(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::size_t first = rank * groups.size() / ranks;
        const std::size_t end = std::max((rank + 1) * groups.size() / ranks, first + 1);
        for (std::size_t i = first; i < end; ++i)
            places[rank].processors.insert(places[rank].processors.end(), groups[i].begin(),
                                           groups[i].end());
        places[rank].sharers = static_cast<int>(std::max<std::size_t>(1, ranks / groups.size()));
    }
    return places;
}

std::vector<Place> on_nodes(const std::vector<std::vector<int>>& nodes, std::size_t ranks,
                            std::string& why_not) {
    // A rank with fewer processors than the others would hold all of them up.
    if (nodes.empty() || (ranks > 1 && !alike(nodes))) {
        why_not = "NUMA nodes have different numbers of processors";
    } else if (ranks % nodes.size() != 0 && nodes.size() % ranks != 0) {
        why_not = count(ranks, "rank") + " cannot be divided evenly among " +
                  count(nodes.size(), "NUMA node");
    } else {
        return divide(nodes, ranks);
    }
    return {};
}

std::vector<Place> on_cores(const std::vector<std::vector<int>>& cores, std::size_t ranks,
                            std::string& why_not) {
    if (cores.size() >= kLeastCores * ranks) {
        // The same number for each; the last few stay free.
        const auto used = static_cast<std::ptrdiff_t>(cores.size() / ranks * ranks);
        return divide({cores.begin(), cores.begin() + used}, ranks);
    }
    why_not = "too few cores (" + std::to_string(cores.size()) + ") for " + count(ranks, "rank") +
              ", which need at least " + std::to_string(kLeastCores) + " each";
    return {};
}

}  // namespace

int Place::threads() const {
    return std::max(1, static_cast<int>(processors.size()) / sharers);
}

Machine find_machine() {
    const Topology topology = load_topology();
    return {processors_of(topology.get(), HWLOC_OBJ_NUMANODE),
            processors_of(topology.get(), HWLOC_OBJ_CORE)};
}

std::vector<Place> place_ranks(const Machine& machine, Placing how, int ranks,
                               std::string& why_not) {
    const auto number = static_cast<std::size_t>(ranks);
    if (how == Placing::kNone) return {};
    return how == Placing::kNuma ? on_nodes(machine.nodes, number, why_not)
                                 : on_cores(machine.cores, number, why_not);
}

PlaceGuard::PlaceGuard(const std::vector<int>& processors) {
    if (processors.empty()) return;
    before_ = libddp::ProcessorSet::of_this_thread();
    if (!libddp::ProcessorSet(processors).use())
        throw std::runtime_error(std::string("cannot place it on its processors: ") +
                                 std::strerror(errno));
}

PlaceGuard::~PlaceGuard() {
    if (before_) before_->use();
}

}  // namespace ddprun
