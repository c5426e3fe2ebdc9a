// MPI in this process: who has initialised it, and what follows from that.
//
// If the program has not, this module does, on a thread that then makes all calls and, when the
// process exits, finalizes MPI. If the program has, what it was granted decides: with
// MPI_THREAD_MULTIPLE a thread of the module's own makes the calls; with less, the program's own
// threads do while they wait inside libddp, so that MPI is never entered twice at once.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>

#include "backends/mpi/driver.h"
#include "ddp/backend.h"
#include "util/mutex.h"

namespace libddp::mpi {

// Which process of MPI a rank is.
struct RankProcess {
    int process = 0;    // rank in MPI_COMM_WORLD
    int processes = 1;  // size of MPI_COMM_WORLD
    std::string job;    // what the launcher calls this MPI job; "" if it does not say
};

class Process {
public:
    static Process& instance();

    // Initialises MPI if nobody has. Throws INVALID_STATE, TIMEOUT, or what broke the group
    // meanwhile.
    Driver& driver(const ddp_backend_host& host, const Deadline& deadline);
    // Which process this is. After driver().
    RankProcess rank_process(const Deadline& deadline);
    // At exit MPI_Finalize may take this long at least. The longest time that anybody asks for
    // counts.
    void allow_finalizing(std::int64_t timeout_ms);
    // A group broke: its other ranks may have left without MPI_Finalize, so that waiting for them
    // is in vain.
    void expect_leavers();

private:
    void adopt() DDP_REQUIRES(mutex_);
    void initialise() DDP_REQUIRES(mutex_);
    void finalize();
    static void at_exit();

    Mutex mutex_;
    std::unique_ptr<Driver> driver_;
    ThreadDriver* own_thread_ = nullptr;  // if this module has initialised MPI
    BatchPtr initialising_;
    std::int64_t finalize_timeout_ms_ DDP_GUARDED_BY(mutex_) = 0;
    bool leavers_ DDP_GUARDED_BY(mutex_) = false;
    int pid_ = 0;
};

// Waits for a batch while a group is being made; returns early, with the reason, if the group
// breaks. `what`: what has not happened when the time is up, as a sentence.
void wait_while_joining(Driver& driver, const BatchPtr& batch, const ddp_backend_host& host,
                        const Deadline& deadline, const std::string& what);

}  // namespace libddp::mpi
