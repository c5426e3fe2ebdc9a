// Which process of MPI each rank of a group is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace libddp::mpi {

struct Place {
    int process = 0;    // rank in MPI_COMM_WORLD
    int processes = 1;  // size of MPI_COMM_WORLD
    std::string job;    // what the launcher calls this MPI job; "" if it does not say
};

std::string encode(const Place& place);
// Throws INTERNAL if `text` was not made by encode().
Place decode(const std::string& text);

// Throws INVALID_ARGUMENT, naming the ranks, unless places[r], rank r's, are different processes of one MPI job.
void check_places(const std::vector<Place>& places);

// What launchers of MPI say in the environment of a process. MPI_Init in a process that none has started may end it.
bool started_by_launcher();
std::string job_name();

}  // namespace libddp::mpi
