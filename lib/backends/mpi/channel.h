// What a collective needs of its group: who is in it, how to have MPI called, and memory to call it with.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "backends/mpi/driver.h"
#include "backends/mpi/staging.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::mpi {

struct Channel {
    Driver& driver;
    const MPI_Comm comm;
    const int rank, size;
    const std::atomic<bool>& aborted;
    const ddp_backend_host& host;
    Staging staging = {};

    std::size_t ranks() const { return static_cast<std::size_t>(size); }
    std::size_t self() const { return static_cast<std::size_t>(rank); }

    // `start` reads and writes the memory of this slot and nothing else.
    Pending begin(std::size_t slot, Start start) { return {driver, std::move(start), staging.keep(slot)}; }
    void wait(Pending& pending, const Deadline& deadline) { pending.wait(deadline, aborted, &host); }
};

}  // namespace libddp::mpi
