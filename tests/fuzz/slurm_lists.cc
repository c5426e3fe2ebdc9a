// Slurm's two compressed lists. The first byte is the index of a node.
#include "fuzz/target.h"
#include "launch/environment.h"

namespace fuzz::slurm_lists {

using namespace libddp;

DDP_FUZZ_TARGET(slurm_lists, input) {
    Reader bytes(input);
    std::int64_t node = bytes.byte();
    if (node == 255) node = bytes.number<std::int64_t>();
    const std::string_view list = bytes.rest();
    if (const auto host = first_slurm_host(list))
        check(!host->empty() && host->size() <= list.size() &&
                  host->find_first_of("[],") == std::string::npos,
              "a host is none");
    if (const auto tasks = slurm_tasks_on_node(list, node))
        check(*tasks >= 0, "a node has a negative number of tasks");
}

}  // namespace fuzz::slurm_lists
