#include <algorithm>
#include <chrono>

#include "backends/mpi/driver.h"
#include "backends/mpi/process.h"
#include "util/quiet_thread.h"
#include "util/spin.h"

namespace libddp::mpi {
namespace {

// How long the thread, and who waits for it, look again at once before they sleep: a little more
// than waking takes.
constexpr auto kStayAwake = std::chrono::microseconds(50);

// How long freeing a group, and the end of the process, may wait for the thread.
constexpr std::int64_t kFreeMs = 500, kStopMs = 100;

bool is_awaited(const BatchPtr& batch) {
    return !batch->given_up;
}

// True once it is done, which the other thread brings about.
template <class Done>
bool stay_awake(Done done, LastSeen& mine, const LastSeen& others) {
    mine.note();
    const auto in_the_way = [&] {
        mine.note();
        return others.is_here();
    };
    return spin_until(kStayAwake, done, in_the_way);
}

}  // namespace

// The thread lives as long as the process: MPI belongs to it.
ThreadDriver::ThreadDriver() {
    quiet_thread([this] { loop(); }).detach();
}

void ThreadDriver::post(BatchPtr batch) {
    const Lock lock(mutex_);
    if (stopping_) {
        batch->error = {DDP_ERROR_INVALID_STATE, "the process is exiting"};
        batch->done = true;
        return;
    }
    new_.push_back(std::move(batch));
    new_count_.store(new_.size(), std::memory_order_release);
    ++unfinished_;
    posted_.notify_one();
}

void ThreadDriver::post_blocking(BatchPtr batch) {
    if (!any_thread_) return post(std::move(batch));
    {
        const Lock lock(mutex_);
        ++unfinished_;
    }
    try {
        quiet_thread([this, batch = std::move(batch)] {
            begin(*batch);
            finish(batch);
        }).detach();
    } catch (...) {
        const Lock lock(mutex_);
        --unfinished_;
        finished_.notify_all();
        throw;
    }
}

bool ThreadDriver::wait(const BatchPtr& batch, const Deadline& deadline,
                        const std::atomic<bool>& aborted) {
    const auto over = [&] { return batch->done.load(std::memory_order_acquire) || aborted; };
    if (!stay_awake(over, caller_seen_, thread_seen_)) {
        Lock lock(mutex_);
        finished_.wait_until(lock, deadline.at(), over);
    }
    return batch->done.load(std::memory_order_acquire);
}

void ThreadDriver::give_up(BatchPtr batch) {
    const Lock lock(mutex_);
    if (batch->done) return;
    if (const auto at = std::find(new_.begin(), new_.end(), batch); at != new_.end()) {
        new_.erase(at);  // MPI has not heard of it
        new_count_.store(new_.size(), std::memory_order_release);
        --unfinished_;
        return;
    }
    batch->given_up = true;
}

void ThreadDriver::wake() {
    const Lock lock(mutex_);
    finished_.notify_all();
}

void ThreadDriver::release(MPI_Comm comm) {
    auto batch = std::make_shared<Batch>(
        [comm](Requests&) mutable { check(MPI_Comm_free(&comm), "MPI_Comm_free"); }, nullptr);
    post(batch);
    // The program may be about to finalize MPI.
    static const std::atomic<bool> never{false};
    wait(batch, Deadline::after_ms(kFreeMs), never);
}

bool ThreadDriver::quiet_within(const Deadline& deadline) {
    Lock lock(mutex_);
    leaving_ = true;
    posted_.notify_one();
    finished_.wait_until(lock, deadline.at(),
                         [this]() DDP_REQUIRES(mutex_) { return unfinished_ == 0; });
    return unfinished_ == 0 && left_to_mpi_.empty();
}

void ThreadDriver::stop() {
    Lock lock(mutex_);
    stopping_ = true;
    posted_.notify_one();
    finished_.wait_until(lock, Deadline::after_ms(kStopMs).at(),
                         [this]() DDP_REQUIRES(mutex_) { return stopped_; });
}

void ThreadDriver::loop() {
    Lock lock(mutex_);
    while (!stopping_) {
        thread_seen_.note();
        take_new(lock);
        if (!active_.empty()) {
            lock.unlock();
            serve_all();
            lock.lock();
        }
        rest(lock);
    }
    stopped_ = true;
    finished_.notify_all();
}

// Begins what was posted, in this order: MPI matches collectives by the order of the calls.
void ThreadDriver::take_new(Lock& lock) {
    while (!new_.empty() && !stopping_) {
        BatchPtr batch = std::move(new_.front());
        new_.pop_front();
        new_count_.store(new_.size(), std::memory_order_release);
        lock.unlock();
        if (begin(*batch) && !poll(*batch))
            active_.push_back(std::move(batch));
        else
            finish(batch);
        lock.lock();
        backoff_.reset();
    }
}

void ThreadDriver::serve_all() {
    const auto over = [this](const BatchPtr& batch) {
        if (!poll(*batch)) return false;
        finish(batch);
        backoff_.reset();
        return true;
    };
    active_.erase(std::remove_if(active_.begin(), active_.end(), over), active_.end());
}

void ThreadDriver::finish(const BatchPtr& batch) {
    const Lock lock(mutex_);
    if (belongs_to_mpi(*batch)) left_to_mpi_.push_back(batch);
    batch->done.store(true, std::memory_order_release);
    --unfinished_;
    finished_.notify_all();
}

// Until there may be something to do. Called and returns with the lock held.
void ThreadDriver::rest(Lock& lock) {
    if (!new_.empty()) return;
    // An operation that was given up may still end, but is not worth staying awake for, except at
    // the end.
    const bool busy =
        leaving_ ? !active_.empty() : std::any_of(active_.begin(), active_.end(), is_awaited);
    if (busy) {
        lock.unlock();
        const auto nap = backoff_.next();
        lock.lock();
        if (nap.count() > 0 && new_.empty()) posted_.wait_for(lock, nap);
        return;
    }
    lock.unlock();
    const auto wanted = [this] {
        return new_count_.load(std::memory_order_acquire) > 0 || leaving_;
    };
    stay_awake(wanted, thread_seen_, caller_seen_);
    lock.lock();
    posted_.wait(lock, [this]() DDP_REQUIRES(mutex_) {
        return !new_.empty() || stopping_ || (leaving_ && !active_.empty());
    });
}

}  // namespace libddp::mpi
