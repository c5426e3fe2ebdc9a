// A thread that waits for a batch of MPI calls, awake or asleep, goes on when the batch is done,
// and sees its error, or when the group was aborted.
//
// also kAborts = 0 => kAborts = 1
// weaken lib/backends/mpi/thread_driver.cc: batch->done.store(true, std::memory_order_release) => batch->done.store(true, std::memory_order_relaxed)
// weaken lib/backends/mpi/thread_driver.cc: batch->done.store(true, std::memory_order_release); --unfinished_; finished_.notify_all(); => batch->done.store(true, std::memory_order_release); --unfinished_;
// weaken lib/backends/mpi/thread_driver.cc: const Lock lock(mutex_); if (belongs_to_mpi => if (belongs_to_mpi
#include <atomic>

#include "checker.h"
#include "util/mutex.h"

namespace libddp::mpi {
namespace {

constexpr int kAborts = 0;

struct Batch {
    int error = 0;
    std::atomic<bool> done{false};
};
using BatchPtr = Batch*;

bool asleep = false;

// A thread that would sleep ends. A thread that stays awake looks once.
struct Condition {
    void notify_all() { asleep = false; }
    template <class Ready>
    bool wait_until(Lock& lock, int, Ready ready) {
        if (ready()) return true;
        asleep = true;
        lock.unlock();
        __VERIFIER_thread_exit(nullptr);
        return false;
    }
};
struct Deadline {
    int at() const { return 0; }
};
struct Kept {
    void push_back(BatchPtr) {}
};
struct LastSeen {};

bool belongs_to_mpi(const Batch&) {
    return false;
}
template <class Done>
bool stay_awake(Done done, LastSeen&, const LastSeen&) {
    return done();
}

class ThreadDriver {
public:
    bool wait(const BatchPtr& batch, const Deadline& deadline, const std::atomic<bool>& aborted);
    void wake();
    void finish(const BatchPtr& batch);

private:
    Mutex mutex_;
    Condition finished_;
    int unfinished_ = 1;
    Kept left_to_mpi_;
    LastSeen thread_seen_, caller_seen_;
};

// from lib/backends/mpi/thread_driver.cc: ThreadDriver::wait
// from lib/backends/mpi/thread_driver.cc: ThreadDriver::wake
// from lib/backends/mpi/thread_driver.cc: ThreadDriver::finish

ThreadDriver driver;
Batch the_batch;
std::atomic<bool> aborted{false};

void* wait(void*) {
    if (driver.wait(&the_batch, Deadline(), aborted)) ALWAYS(the_batch.error == 1);
    return nullptr;
}

void* finish(void*) {
    the_batch.error = 1;
    driver.finish(&the_batch);
    return nullptr;
}

void* abort(void*) {
    aborted = true;
    driver.wake();
    return nullptr;
}

}  // namespace
}  // namespace libddp::mpi

int main() {
    using namespace libddp;
    const long waits = model::start(mpi::wait, 0);
    const long ends = model::start(mpi::kAborts ? mpi::abort : mpi::finish, 0);
    model::join(waits);
    model::join(ends);
    ALWAYS(!mpi::asleep);
    return 0;
}
