// A few calls of MPI that are made together and waited for together.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "util/error.h"

namespace libddp::mpi {

using Requests = std::vector<MPI_Request>;

// Makes the calls and appends the requests of those that go on. It may run when the operation that it belongs to has
// been given up, so it holds everything by value, and what the calls read and write belongs to the batch.
using Start = std::function<void(Requests&)>;

struct Batch {
    Batch(Start start_, std::shared_ptr<const void> memory_) : start(std::move(start_)), memory(std::move(memory_)) {}

    Start start;
    const std::shared_ptr<const void> memory;
    Requests requests;
    std::vector<MPI_Status> statuses;
    ErrorInfo error;                    // read once done
    std::atomic<bool> done{false};      // every request is complete, or there is an error
    std::atomic<bool> given_up{false};  // nobody waits any more
};

using BatchPtr = std::shared_ptr<Batch>;

// Runs start; false if it failed, with the reason in `error`.
bool begin(Batch& batch) noexcept;
// Whether requests may be on their way although the batch is done, as after an error of one: MPI may still use its memory.
bool belongs_to_mpi(const Batch& batch);
// Looks whether every request is complete, or one failed (then `error` is set). Lets MPI make progress.
bool poll(Batch& batch) noexcept;

}  // namespace libddp::mpi
