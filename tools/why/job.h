// A job as its folder of records shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "why/position.h"
#include "why/reader.h"

namespace why {

struct Job {
    std::string folder;
    std::vector<std::string> complaints;  // of read_records
    std::vector<libddp::record::ProcessRecord> processes;
    std::vector<libddp::record::Group> groups;  // they point into `processes`
};

// Reads a folder of records, and of its groups those of at least so many ranks. Throws
// std::filesystem::filesystem_error if there is no such folder.
Job read_job(const std::string& folder, const libddp::record::Limits& limits = {},
             std::int32_t least_world = 2);

}  // namespace why
