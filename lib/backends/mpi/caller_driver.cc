#include <chrono>
#include <thread>

#include "backends/mpi/driver.h"
#include "backends/mpi/process.h"

namespace libddp::mpi {
namespace {

// The thread has nothing else to do. Where ranks share cores, MPI yields by itself.
constexpr std::chrono::microseconds kEager{100};

}  // namespace

void CallerDriver::post(BatchPtr batch) {
    const Lock lock(mutex_);
    require_right_thread();
    for (MPI_Comm& comm : to_free_) {
        Batch freeing([&comm](Requests&) { check(MPI_Comm_free(&comm), "MPI_Comm_free"); },
                      nullptr);
        begin(freeing);
    }
    to_free_.clear();
    // An operation that was given up may have ended since.
    std::erase_if(left_to_mpi_,
                  [](const BatchPtr& left) { return left->error.ok() && poll(*left); });
    if (!begin(*batch)) finish(batch);
}

bool CallerDriver::wait(const BatchPtr& batch, const Deadline& deadline,
                        const std::atomic<bool>& aborted) {
    Backoff backoff(kEager);
    while (!batch->done) {
        {
            const Lock lock(mutex_);
            require_right_thread();
            if (poll(*batch)) finish(batch);
        }
        if (batch->done) break;
        if (aborted || deadline.expired()) return false;
        if (const auto nap = backoff.next(); nap.count() > 0) std::this_thread::sleep_for(nap);
    }
    return true;
}

void CallerDriver::give_up(BatchPtr batch) {
    const Lock lock(mutex_);
    if (!batch->done) left_to_mpi_.push_back(std::move(batch));
}

void CallerDriver::finish(const BatchPtr& batch) {
    if (belongs_to_mpi(*batch)) left_to_mpi_.push_back(batch);
    batch->done = true;
}

// The thread that frees a group may be any; MPI is left alone until one that waits comes by.
void CallerDriver::release(MPI_Comm comm) {
    const Lock lock(mutex_);
    to_free_.push_back(comm);
}

void CallerDriver::require_right_thread() const {
    require_running();
    if (!main_only_) return;
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (!is_main)
        fail(DDP_ERROR_INVALID_STATE,
             "the program has initialised MPI for one thread only (MPI_Init, MPI_THREAD_SINGLE or "
             "MPI_THREAD_FUNNELED), so only that thread may create groups of the backend mpi and "
             "wait for their operations; to use others, call MPI_Init_thread with "
             "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
}

}  // namespace libddp::mpi
