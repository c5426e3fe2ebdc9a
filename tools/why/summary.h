// The content of a job's records, as JSON: for the report, and for programs of the user. docs/record.md lists its
// fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/position.h"

namespace why {

struct Job {
    std::string folder;
    std::vector<std::string> complaints;  // of read_records
    std::vector<libddp::record::ProcessRecord> processes;
    std::vector<libddp::record::Group> groups;  // they point into `processes`
};

// Reads a folder of records. Throws std::filesystem::filesystem_error if there is no such folder.
Job read_job(const std::string& folder);

// patience_ns: as for find_cause. Bytes of the program's texts that are no UTF-8 become U+FFFD.
std::string summarize(const Job& job, std::int64_t patience_ns);

}  // namespace why
