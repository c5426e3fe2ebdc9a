// Where the ranks of a group are, as other ranks wrote it into the store. The first two bytes are
// the world size and this rank.
#include "backends/common/topology.h"

#include "fuzz/fake_host.h"
#include "fuzz/target.h"

namespace fuzz::topology {

using namespace libddp;

DDP_FUZZ_TARGET(topology, input) {
    Reader bytes(input);
    const int world = 1 + static_cast<int>(bytes.below(6));
    const int rank = static_cast<int>(bytes.below(static_cast<std::size_t>(world)));
    FakeHost fake;
    fake.get = [&](const std::string&) {
        return std::string(rank == 0 ? bytes.until('\n') : bytes.rest());
    };
    const ddp_backend_host host = fake.services(rank, world);
    accepts([&] {
        const backend::Topology topology = backend::find_topology(host, Deadline::after_ms(1000));
        check(topology.world() == world, "a topology has another number of ranks than the world");
        check(1 <= topology.fewest() && topology.fewest() <= topology.most() &&
                  topology.most() <= world,
              "a host has no rank, or too many");
        check(topology.local_ranks()[static_cast<std::size_t>(topology.local_rank())] == rank,
              "a rank is elsewhere");
        int ranks = 0;
        for (int number = 0; number < topology.hosts(); ++number)
            ranks += static_cast<int>(topology.ranks(number).size());
        check(ranks == world, "a rank is on several hosts or on none");
    });
}

}  // namespace fuzz::topology
