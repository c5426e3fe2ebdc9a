// ddp-bench join: what it takes to join a group, and what the group then holds.
#include <algorithm>
#include <filesystem>
#include <iterator>

#include "benchmarks.h"
#include "groups.h"
#include "measure.h"

namespace bench {
namespace {

double entries_of(const char* folder) {
    const auto entries = std::filesystem::directory_iterator(folder);
    return static_cast<double>(std::distance(begin(entries), end(entries)));
}

}  // namespace

Holding Holding::now() {
    return {now_ms(), entries_of("/proc/self/fd"), entries_of("/proc/self/task")};
}

std::vector<Row> run_join(ddp_group* group, const Options& options, const Holding& before) {
    const Holding after = Holding::now();
    // The clock is the host's. A rank that comes last does not make the others slow, so the time
    // begins with it.
    std::vector<double> largest{before.at_ms, after.at_ms, after.descriptors - before.descriptors,
                                after.threads - before.threads};
    ranks_of(group).maximum_of(largest);
    Row row =
        make_row("join", ddp_group_world_size(group),
                 label(group, options.backends.front()).c_str(), 0, {largest[1] - largest[0]});
    row["descriptors"] = static_cast<int>(largest[2]);
    row["threads"] = static_cast<int>(largest[3]);
    return {row};
}

}  // namespace bench
