#include "backends/mpi/process.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "backends/common/keys.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp::mpi {
namespace {

const std::atomic<bool> kNever{false};

// How often a rank that waits for others asks whether the group still stands.
constexpr std::int64_t kJoinLookMs = 100;
// How long operations that nobody waits for may take to end before MPI is finalized.
constexpr std::int64_t kQuietMs = 1'000;
// How long MPI_Finalize may wait for processes that may have left without it.
constexpr std::int64_t kLeaversMs = 1'000;

// Open MPI and what builds on PMIx; MPICH, Intel MPI, Cray MPICH and Slurm's PMI-2; MVAPICH.
constexpr const char* kMarks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_FD",
                                  "MV2_COMM_WORLD_RANK"};
// The same in all processes of an MPI job, and others in another job.
constexpr const char* kJobNames[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                                     "SLURM_JOB_ID", "SLURM_STEP_ID"};

// MPI_Init in a process that no launcher has started may end it.
bool started_by_launcher() {
    for (const char* name : kMarks)
        if (const char* value = std::getenv(name); value && *value) return true;
    return false;
}

std::string job_name() {
    std::string name;
    for (const char* variable : kJobNames)
        if (const char* value = std::getenv(variable); value && *value)
            name += str(name.empty() ? "" : "/", value);
    return name;
}

// Open MPI loads components that expect to find its libraries among the global symbols, but a
// module is loaded with RTLD_LOCAL. This makes the symbols of the MPI that is already loaded
// global.
void make_symbols_global() {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

// On the thread that will also finalize MPI.
void initialise_here(ThreadDriver& driver) {
    make_symbols_global();
    int level = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // Errors are for libddp to report; MPI would end the process.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    driver.set_any_thread(level == MPI_THREAD_MULTIPLE);
}

}  // namespace

Process& Process::instance() {
    // Never destroyed: the driver's thread and at_exit() use it to the end.
    static Process& process = *new Process;
    return process;
}

Driver& Process::driver(const ddp_backend_host& host, const Deadline& deadline) {
    Lock lock(mutex_);
    require_running();
    if (!driver_) {
        int initialised = 0;
        MPI_Initialized(&initialised);
        initialised ? adopt() : initialise();
    }
    lock.unlock();
    if (initialising_)
        wait_while_joining(*driver_, initialising_, host, deadline,
                           "MPI_Init_thread did not return: it waits until every process that "
                           "mpirun has started calls it");
    return *driver_;
}

void Process::adopt() {
    int level = MPI_THREAD_SINGLE;
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level == MPI_THREAD_MULTIPLE) {
        auto own = std::make_unique<ThreadDriver>();
        own->set_any_thread(true);
        driver_ = std::move(own);
    } else {
        driver_ = std::make_unique<CallerDriver>(level != MPI_THREAD_SERIALIZED);
    }
}

void Process::initialise() {
    if (!started_by_launcher())
        fail(DDP_ERROR_INVALID_STATE,
             "this process was not started by mpirun: start the ranks with it (mpirun -n 4 "
             "./program), or with another launcher of your MPI, such as srun");
    auto own = std::make_unique<ThreadDriver>();
    own_thread_ = own.get();
    driver_ = std::move(own);
    initialising_ =
        std::make_shared<Batch>([raw = own_thread_](Requests&) { initialise_here(*raw); }, nullptr);
    own_thread_->post(initialising_);
    pid_ = getpid();
    std::atexit(at_exit);
}

RankProcess Process::rank_process(const Deadline& deadline) {
    auto result = std::make_shared<RankProcess>();
    Pending asking(
        *driver_,
        [result](Requests&) {
            check(MPI_Comm_rank(MPI_COMM_WORLD, &result->process), "MPI_Comm_rank");
            check(MPI_Comm_size(MPI_COMM_WORLD, &result->processes), "MPI_Comm_size");
        },
        nullptr);
    asking.wait(deadline, kNever);
    result->job = job_name();
    return *result;
}

void Process::allow_finalizing(std::int64_t timeout_ms) {
    const Lock lock(mutex_);
    finalize_timeout_ms_ = std::max(finalize_timeout_ms_, timeout_ms);
}

void Process::expect_leavers() {
    const Lock lock(mutex_);
    leavers_ = true;
}

void Process::at_exit() {
    instance().finalize();
}

// MPI_Finalize waits for the other processes. Where an operation was given up it might never
// return; then this process ends without it, which mpirun takes for a failure, as it should.
void Process::finalize() {
    if (pid_ != getpid()) return;  // a fork has no thread to do it
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && own_thread_->quiet_within(Deadline::after_ms(kQuietMs))) {
        const Lock lock(mutex_);
        const auto timeout_ms =
            leavers_ ? std::min(finalize_timeout_ms_, kLeaversMs) : finalize_timeout_ms_;
        auto batch = std::make_shared<Batch>(
            [](Requests&) { check(MPI_Finalize(), "MPI_Finalize"); }, nullptr);
        own_thread_->post(batch);
        if (!own_thread_->wait(batch, Deadline::after_ms(timeout_ms), kNever))
            log(LogLevel::kWarn,
                "backend mpi: other processes of the job did not come to their end within ",
                timeout_ms, " ms; this one exits without MPI_Finalize, and mpirun may end them");
    }
    own_thread_->stop();
}

void wait_while_joining(Driver& driver, const BatchPtr& batch, const ddp_backend_host& host,
                        const Deadline& deadline, const std::string& what) {
    while (!driver.wait(batch, Deadline::after_ms(std::min(kJoinLookMs, deadline.remaining_ms())),
                        kNever)) {
        if (deadline.expired()) fail(DDP_ERROR_TIMEOUT, what, " (", host.timeout_ms, " ms)");
        ask_program(host);
        backend::Keys(host).check_group();
    }
    if (!batch->error.ok()) throw Error(batch->error);
}

}  // namespace libddp::mpi
