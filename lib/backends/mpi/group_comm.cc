#include "backends/mpi/group_comm.h"

#include <map>
#include <string>
#include <vector>

#include "backends/common/keys.h"
#include "backends/mpi/process.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/options.h"

namespace libddp::mpi {
namespace {

constexpr const char* kPlaces = "place/";

std::string quoted_or_unnamed(const std::string& job) {
    return job.empty() ? "one without a name" : str("'", job, "'");
}

std::string encode(const RankProcess& one) {
    return str(one.process, '\n', one.processes, '\n', one.job);
}

RankProcess decode(const std::string& text) {
    const auto first = text.find('\n');
    const auto second = first == std::string::npos ? first : text.find('\n', first + 1);
    if (second == std::string::npos)
        fail(DDP_ERROR_INTERNAL, "'", text, "' does not say which MPI process a rank is");
    RankProcess one;
    one.process = static_cast<int>(parse_int(text.substr(0, first), 0, INT32_MAX, "MPI process"));
    one.processes = static_cast<int>(
        parse_int(text.substr(first + 1, second - first - 1), 1, INT32_MAX, "MPI_COMM_WORLD"));
    one.job = text.substr(second + 1);
    return one;
}

// Throws INVALID_ARGUMENT, naming the ranks, unless all[r], rank r's, are different processes of
// one MPI job.
void check_processes(const std::vector<RankProcess>& all) {
    const RankProcess& first = all.front();
    std::map<int, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const RankProcess& one = all[rank];
        if (one.job != first.job || one.processes != first.processes) {
            ErrorInfo error{
                DDP_ERROR_INVALID_ARGUMENT,
                str("rank ", rank, " is a process of another MPI job (", quoted_or_unnamed(one.job),
                    ", ", one.processes, " processes) than rank 0 (", quoted_or_unnamed(first.job),
                    ", ", first.processes,
                    " processes); one mpirun must start all ranks of a group")};
            error.rank = static_cast<std::int32_t>(rank);
            throw Error(error);
        }
        if (const auto [taken, fresh] = rank_of.emplace(one.process, rank); !fresh) {
            ErrorInfo error{
                DDP_ERROR_INVALID_ARGUMENT,
                str("ranks ", taken->second, " and ", rank, " are both process ", one.process,
                    " of MPI_COMM_WORLD; with the backend mpi each rank is a process of its own")};
            error.rank = static_cast<std::int32_t>(rank);
            throw Error(error);
        }
    }
}

// Every rank comes to the same verdict from the same facts.
std::vector<int> exchange_processes(const RankProcess& mine, const ddp_backend_host& host,
                                    const Deadline& deadline) {
    if (mine.processes < host.world_size)
        fail(DDP_ERROR_INVALID_ARGUMENT, "the group has ", host.world_size,
             " ranks, but the MPI job of rank ", host.rank, " has ", mine.processes,
             mine.processes == 1 ? " process" : " processes",
             "; start all ranks with one mpirun (mpirun -n ", host.world_size, " ./program)");
    backend::Keys keys(host, kPlaces);
    keys.set(std::to_string(host.rank), encode(mine));
    std::vector<RankProcess> all;
    std::vector<int> processes;
    for (std::int32_t rank = 0; rank < host.world_size; ++rank) {
        all.push_back(rank == host.rank ? mine : decode(keys.get(std::to_string(rank), deadline)));
        processes.push_back(all.back().process);
    }
    check_processes(all);
    return processes;
}

// Keeps apart communicators that several threads make at the same time.
int tag_of(const std::string& group_name) {
    constexpr std::uint64_t kLargestTag = 32'767;  // what every MPI allows
    return static_cast<int>(Hash().add(group_name).value() % kLargestTag);
}

struct Groups {
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    ~Groups() {
        if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
        if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
    }
};

// The program's communicator returns errors meanwhile: they must come back here and not end the
// process.
class ErrorsReturned {
public:
    explicit ErrorsReturned(MPI_Comm comm) : comm_(comm) {
        check(MPI_Comm_get_errhandler(comm_, &before_), "MPI_Comm_get_errhandler");
        check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    ~ErrorsReturned() {
        MPI_Comm_set_errhandler(comm_, before_);
        MPI_Errhandler_free(&before_);
    }
    ErrorsReturned(const ErrorsReturned&) = delete;
    ErrorsReturned& operator=(const ErrorsReturned&) = delete;

private:
    const MPI_Comm comm_;
    MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

MPI_Comm make(const std::vector<int>& processes, int tag) {
    const ErrorsReturned guard(MPI_COMM_WORLD);
    Groups groups;
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &groups.all), "MPI_Comm_group");
    check(MPI_Group_incl(groups.all, static_cast<int>(processes.size()), processes.data(),
                         &groups.members),
          "MPI_Group_incl");
    check(MPI_Comm_create_group(MPI_COMM_WORLD, groups.members, tag, &comm),
          "MPI_Comm_create_group");
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
}

}  // namespace

GroupComm::GroupComm(Driver& driver, const ddp_backend_host& host, const Deadline& deadline)
    : driver_(driver) {
    const auto processes =
        exchange_processes(Process::instance().rank_process(deadline), host, deadline);
    // The one call that blocks. Every rank is about to make it: each has told where it is.
    auto comm = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
    auto batch = std::make_shared<Batch>([comm, processes, tag = tag_of(host.group_name)](
                                             Requests&) { *comm = make(processes, tag); },
                                         nullptr);
    driver.post_blocking(batch);
    try {
        wait_while_joining(driver, batch, host, deadline,
                           "MPI_Comm_create_group did not return: a rank has not come to it, or "
                           "MPI cannot reach it");
    } catch (...) {
        driver.give_up(batch);
        throw;
    }
    comm_ = *comm;
    // All ranks have come to MPI_Comm_create_group, and so they have read where this one is.
    backend::Keys(host, kPlaces).forget(std::to_string(host.rank));
}

GroupComm::~GroupComm() {
    if (comm_ != MPI_COMM_NULL && !abandoned_) driver_.release(comm_);
}

}  // namespace libddp::mpi
