// The communicator of one group.
#pragma once

#include <mpi.h>

#include "backends/mpi/driver.h"
#include "backends/mpi/process.h"
#include "ddp/backend.h"

namespace libddp::mpi {

class GroupComm {
public:
    // Tells the other ranks, through the group's store, which process of MPI this one is, and makes
    // a communicator in which every rank has its number of the group. Throws INVALID_ARGUMENT
    // naming the ranks that do not fit.
    GroupComm(Driver& driver, const ddp_backend_host& host, const Deadline& deadline);
    // Frees the communicator, unless it was abandoned.
    ~GroupComm();
    GroupComm(const GroupComm&) = delete;
    GroupComm& operator=(const GroupComm&) = delete;

    MPI_Comm get() const { return comm_; }
    // An operation on it failed or was given up, here or elsewhere: it stays with MPI.
    void abandon() { abandoned_ = true; }

private:
    Driver& driver_;
    MPI_Comm comm_ = MPI_COMM_NULL;
    bool abandoned_ = false;
};

}  // namespace libddp::mpi
