// Where MPI is called: on which thread, and who waits how.
//
// Nothing here waits in MPI itself: calls are nonblocking, MPI is polled, and who waits does so in
// libddp, up to a deadline or an abort. An operation of MPI cannot be taken back. One that is given
// up keeps its requests, and the memory that MPI may still write, until it ends, which may be
// never: that is why operations work on memory of the module's own.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/mutex.h"
#include "util/spin.h"

namespace libddp::mpi {

// Throws UNAVAILABLE with MPI's own words, unless `code` says success.
void check(int code, const char* call);

// Throws INVALID_STATE if MPI has been finalized: the program may do that although groups still use
// it, and any other call would then end the process.
void require_running();

using Requests = std::vector<MPI_Request>;

// Makes the calls and appends the requests of those that go on. It may run when the operation that
// it belongs to has been given up, so it holds everything by value, and what the calls read and
// write belongs to the batch.
using Start = std::function<void(Requests&)>;

// A few calls of MPI that are made together and waited for together.
struct Batch {
    Batch(Start start_, std::shared_ptr<const void> memory_)
        : start(std::move(start_)), memory(std::move(memory_)) {}

    Start start;
    const std::shared_ptr<const void> memory;
    Requests requests;
    std::vector<MPI_Status> statuses;
    ErrorInfo error;                    // read once done, which releases it
    std::atomic<bool> done{false};      // every request is complete, or there is an error
    std::atomic<bool> given_up{false};  // nobody waits any more
};

using BatchPtr = std::shared_ptr<Batch>;

// Runs start; false if it failed, with the reason in `error`.
bool begin(Batch& batch) noexcept;
// Whether requests may be on their way although the batch is done, as after an error of one: MPI
// may still use its memory.
bool belongs_to_mpi(const Batch& batch);
// Looks whether every request is complete, or one failed (then `error` is set). Lets MPI make
// progress.
bool poll(Batch& batch) noexcept;

// How to wait for something that nobody announces: first look again at once, then let others run,
// then sleep.
class Backoff {
public:
    using Clock = std::chrono::steady_clock;

    // eager: how long to look again at once. Yielding may cost a whole time slice if another
    // program wants the core.
    explicit Backoff(std::chrono::microseconds eager) : eager_(eager) {}

    // How long to sleep before looking again; zero: not at all.
    std::chrono::microseconds next() {
        const auto now = Clock::now();
        if (!waiting_) since_ = now;
        waiting_ = true;
        const auto waited = now - since_;
        if (waited < eager_) return {};
        if (waited < kYielding) {
            std::this_thread::yield();
            return {};
        }
        return waited < kNapping ? kNap : kLongNap;
    }
    // Something happened: the next thing may be near.
    void reset() { waiting_ = false; }

private:
    static constexpr auto kYielding = std::chrono::milliseconds(2);
    static constexpr auto kNapping = std::chrono::seconds(1);
    // Short enough that the kernel's socket buffers bridge it: MPI moves data only while it is
    // called.
    static constexpr std::chrono::microseconds kNap{50}, kLongNap{500};

    const std::chrono::microseconds eager_;
    bool waiting_ = false;
    Clock::time_point since_;
};

// Throws INTERRUPTED if the program wants the calling thread's wait to end.
void ask_program(const ddp_backend_host& host);

class Driver {
public:
    virtual ~Driver() = default;

    // Has the batch begun, soon.
    virtual void post(BatchPtr batch) = 0;
    // The same for a call that blocks until other ranks make it too. The other batches go on
    // meanwhile, if MPI allows.
    virtual void post_blocking(BatchPtr batch) = 0;
    // Until the batch is done. False if the deadline passed or `aborted` was set first.
    virtual bool wait(const BatchPtr& batch, const Deadline& deadline,
                      const std::atomic<bool>& aborted) = 0;
    // Nobody will wait for it any more.
    virtual void give_up(BatchPtr batch) = 0;
    // After an `aborted` was set.
    virtual void wake() = 0;
    // Frees a communicator at some time.
    virtual void release(MPI_Comm comm) = 0;
    // Whether MPI may be called only by threads that the program itself lends.
    virtual bool needs_caller() const = 0;
};

// On one thread of its own, which serves all groups of the process: for an MPI that this module has
// initialised, or that lets any thread call it at any time.
class ThreadDriver : public Driver {
public:
    ThreadDriver();
    // Whether other threads may call MPI as well (MPI_THREAD_MULTIPLE). Before that is known they
    // may not.
    void set_any_thread(bool any_thread) { any_thread_ = any_thread; }

    void post(BatchPtr batch) override;
    void post_blocking(BatchPtr batch) override;
    bool wait(const BatchPtr& batch, const Deadline& deadline,
              const std::atomic<bool>& aborted) override;
    void give_up(BatchPtr batch) override;
    void wake() override;
    void release(MPI_Comm comm) override;
    bool needs_caller() const override { return false; }

    // Waits until nothing is under way, as the process exits. False if something is: MPI_Finalize
    // might not return.
    bool quiet_within(const Deadline& deadline);
    // Ends the thread, unless it is stuck in MPI: nobody may be there while the process exits.
    void stop();

private:
    // Short: mpirun likes to bind a process to one core, which who waits here needs to work on the
    // data.
    static constexpr std::chrono::microseconds kEager{10};

    void loop();
    // Both let go of the lock meanwhile.
    void take_new(Lock& lock) DDP_REQUIRES(mutex_) DDP_UNCHECKED_LOCKS;
    void serve_all();
    void rest(Lock& lock) DDP_REQUIRES(mutex_) DDP_UNCHECKED_LOCKS;
    void finish(const BatchPtr& batch);

    Mutex mutex_;
    Condition posted_;    // for the thread
    Condition finished_;  // for those who wait
    std::deque<BatchPtr> new_ DDP_GUARDED_BY(mutex_);
    std::atomic<std::size_t> new_count_{0};  // for a look without the lock
    std::size_t unfinished_ DDP_GUARDED_BY(mutex_) = 0;
    std::vector<BatchPtr> left_to_mpi_ DDP_GUARDED_BY(mutex_);  // after an error: kept for ever
    std::vector<BatchPtr> active_;                              // touched by the thread alone
    Backoff backoff_{kEager};                                   // so is this
    LastSeen thread_seen_, caller_seen_;
    std::atomic<bool> leaving_{false};
    bool stopping_ DDP_GUARDED_BY(mutex_) = false, stopped_ DDP_GUARDED_BY(mutex_) = false;
    std::atomic<bool> any_thread_{false};
};

// On the thread that waits, which is one of the program's: for an MPI that the program has
// initialised and that no two threads may call at a time.
class CallerDriver : public Driver {
public:
    // main_only: only the thread that initialised MPI may call it.
    explicit CallerDriver(bool main_only) : main_only_(main_only) {}

    void post(BatchPtr batch) override;
    void post_blocking(BatchPtr batch) override { post(std::move(batch)); }
    bool wait(const BatchPtr& batch, const Deadline& deadline,
              const std::atomic<bool>& aborted) override;
    void give_up(BatchPtr batch) override;
    void wake() override {}  // waiters look often enough
    void release(MPI_Comm comm) override;
    bool needs_caller() const override { return true; }

private:
    void require_right_thread() const;
    void finish(const BatchPtr& batch) DDP_REQUIRES(mutex_);

    const bool main_only_;
    // held while in MPI: several threads of the program may wait, each for a group of its own
    Mutex mutex_;
    std::vector<MPI_Comm> to_free_ DDP_GUARDED_BY(mutex_);
    std::vector<BatchPtr> left_to_mpi_ DDP_GUARDED_BY(mutex_);
};

// A batch under way that this object is responsible for: given up if nobody waited for its end.
class Pending {
public:
    Pending() = default;
    Pending(Driver& driver, Start start, std::shared_ptr<const void> memory);
    Pending(Pending&& other) noexcept : driver_(other.driver_), batch_(std::move(other.batch_)) {}
    Pending& operator=(Pending&& other) noexcept;
    ~Pending() { give_up(); }

    // Throws TIMEOUT, ABORTED or what MPI said; INTERRUPTED if there is a host to ask whether the
    // program wants that.
    void wait(const Deadline& deadline, const std::atomic<bool>& aborted,
              const ddp_backend_host* host = nullptr);

private:
    void give_up();

    Driver* driver_ = nullptr;
    BatchPtr batch_;
};

}  // namespace libddp::mpi
