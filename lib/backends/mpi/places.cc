#include "backends/mpi/places.h"

#include <cstdlib>
#include <map>

#include "util/error.h"
#include "util/options.h"

namespace libddp::mpi {
namespace {

// Open MPI and what builds on PMIx; MPICH, Intel MPI, Cray MPICH and Slurm's PMI-2; MVAPICH.
constexpr const char* kMarks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_FD", "MV2_COMM_WORLD_RANK"};
// The same in all processes of an MPI job, and others in another job.
constexpr const char* kJobNames[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID",
                                     "SLURM_STEP_ID"};

std::string quoted_or_unnamed(const std::string& job) {
    return job.empty() ? "one without a name" : str("'", job, "'");
}

}  // namespace

std::string encode(const Place& place) {
    return str(place.process, '\n', place.processes, '\n', place.job);
}

Place decode(const std::string& text) {
    const auto first = text.find('\n');
    const auto second = first == std::string::npos ? first : text.find('\n', first + 1);
    if (second == std::string::npos) fail(DDP_ERROR_INTERNAL, "'", text, "' does not say which MPI process a rank is");
    Place place;
    place.process = static_cast<int>(parse_int(text.substr(0, first), 0, INT32_MAX, "MPI process"));
    place.processes =
        static_cast<int>(parse_int(text.substr(first + 1, second - first - 1), 1, INT32_MAX, "MPI_COMM_WORLD"));
    place.job = text.substr(second + 1);
    return place;
}

void check_places(const std::vector<Place>& places) {
    const Place& first = places.front();
    std::map<int, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
        const Place& place = places[rank];
        if (place.job != first.job || place.processes != first.processes) {
            ErrorInfo error{DDP_ERROR_INVALID_ARGUMENT,
                            str("rank ", rank, " is a process of another MPI job (", quoted_or_unnamed(place.job), ", ",
                                place.processes, " processes) than rank 0 (", quoted_or_unnamed(first.job), ", ",
                                first.processes, " processes); one mpirun must start all ranks of a group")};
            error.rank = static_cast<std::int32_t>(rank);
            throw Error(error);
        }
        if (const auto [taken, fresh] = rank_of.emplace(place.process, rank); !fresh) {
            ErrorInfo error{DDP_ERROR_INVALID_ARGUMENT,
                            str("ranks ", taken->second, " and ", rank, " are both process ", place.process,
                                " of MPI_COMM_WORLD; with the backend mpi each rank is a process of its own")};
            error.rank = static_cast<std::int32_t>(rank);
            throw Error(error);
        }
    }
}

bool started_by_launcher() {
    for (const char* name : kMarks)
        if (const char* value = std::getenv(name); value && *value) return true;
    return false;
}

std::string job_name() {
    std::string name;
    for (const char* variable : kJobNames)
        if (const char* value = std::getenv(variable); value && *value) name += str(name.empty() ? "" : "/", value);
    return name;
}

}  // namespace libddp::mpi
