// The file about ddprun itself in the folder of records, by which `ddprun --status` finds and
// describes the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/layout.h"

namespace ddprun {

struct JobFacts {
    int pid = 0;                // of ddprun
    std::uint64_t started = 0;  // when it began, as the kernel counts
    int ranks = 0;              // of this node
    int nodes = 1;
    int node_rank = 0;
    int generation = 0;
    std::uint64_t events = libddp::record::kEvents;  // that the record of a rank holds
    std::string records;                             // the folder of the generation
    std::string command;

    // ddprun is still there.
    bool runs() const;
};

// Where the records of a generation lie in the folder of a job.
std::string generation_folder(const std::string& folder, int generation);

// The facts of this process.
JobFacts own_facts(const std::vector<std::string>& program);

// Throws std::runtime_error.
void write_job_file(const std::string& folder, const JobFacts& facts);
// Empty if there is none.
std::optional<JobFacts> read_job_file(const std::string& folder);

// How the names of the folders in memory begin, and where they may lie.
inline constexpr const char* kJobPrefix = "ddprun-";
inline constexpr const char* kMemoryPlace = "/dev/shm";
// TMPDIR or /tmp.
std::string disk_place();
// The jobs of this user that run.
std::vector<JobFacts> find_jobs();

}  // namespace ddprun
