// The launcher's view of the processes of its ranks, in a file beside their records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace libddp::record {

struct Sight {
    enum class Kind { kExited, kKilled, kStopped };

    std::int32_t launch_rank = 0;
    Kind kind = Kind::kExited;
    std::string text;     // "was killed by signal 9 (SIGKILL)"
    std::string words{};  // the last line that it wrote to stderr
    // when, by the system's clock; 0: unknown, and the rank has had one process
    std::int64_t realtime_ns = 0;
};

// Adds to what was seen. Returns why it could not; "": it has. The records are there without it.
std::string add_sight(const std::string& folder, const Sight& sight);
// The sights of one host in the order in which they were seen.
std::vector<Sight> read_sights(const std::string& folder);

// The file for the sights of this host; and whether a file of this name is one for any host.
std::string sights_path(const std::string& folder);
bool holds_sights(std::string_view file_name);

}  // namespace libddp::record
