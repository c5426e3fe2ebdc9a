// A mutex, a lock and a condition variable that clang understands: in its builds -Wthread-safety is
// an error where a member is used, or a function called, without the lock that its declaration
// names. The types of the C++ library say nothing about that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define DDP_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define DDP_THREAD_SAFETY(attribute)
#endif
// On a member: it is used with this mutex held.
#define DDP_GUARDED_BY(mutex) DDP_THREAD_SAFETY(guarded_by(mutex))
// On a function, or on a lambda that a wait calls: it is called with this mutex held.
#define DDP_REQUIRES(mutex) DDP_THREAD_SAFETY(requires_capability(mutex))
// On a function that the analysis cannot follow.
#define DDP_UNCHECKED_LOCKS DDP_THREAD_SAFETY(no_thread_safety_analysis)

namespace libddp {

class DDP_THREAD_SAFETY(capability("mutex")) Mutex {
public:
    // The caller of this function holds it, through another object that clang does not know to have
    // the same mutex.
    void assume_held() const DDP_THREAD_SAFETY(assert_capability(this)) {}

private:
    friend class Lock;
    std::mutex mutex_;
};

// Holds a mutex while it lives, but for the time between unlock() and lock().
class DDP_THREAD_SAFETY(scoped_lockable) Lock {
public:
    explicit Lock(Mutex& mutex) DDP_THREAD_SAFETY(acquire_capability(mutex))
        : lock_(mutex.mutex_) {}
    ~Lock() DDP_THREAD_SAFETY(release_capability()) {}
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    void unlock() DDP_THREAD_SAFETY(release_capability()) { lock_.unlock(); }
    void lock() DDP_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }

private:
    friend class Condition;
    friend class Unlocked;
    std::unique_lock<std::mutex> lock_;
};

// Lets go of the mutex while it lives, in a function whose caller has the lock.
class DDP_THREAD_SAFETY(scoped_lockable) Unlocked {
public:
    Unlocked(Lock& lock, [[maybe_unused]] Mutex& mutex) DDP_THREAD_SAFETY(release_capability(mutex))
        : lock_(lock) {
        lock_.lock_.unlock();
    }
    ~Unlocked() DDP_THREAD_SAFETY(release_capability()) { lock_.lock_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    Lock& lock_;
};

class Condition {
public:
    void notify_one() { condition_.notify_one(); }
    void notify_all() { condition_.notify_all(); }

    template <class Ready>
    void wait(Lock& lock, Ready ready) {
        condition_.wait(lock.lock_, ready);
    }
    // False: the time has passed, and it is not ready.
    template <class Time, class Ready>
    bool wait_until(Lock& lock, Time time, Ready ready) {
        return condition_.wait_until(lock.lock_, time, ready);
    }
    // These return for no reason, too.
    void wait(Lock& lock) { condition_.wait(lock.lock_); }
    void wait_until(Lock& lock, std::chrono::steady_clock::time_point time) {
        condition_.wait_until(lock.lock_, time);
    }
    // False: the time has passed.
    bool wait_for(Lock& lock, std::chrono::nanoseconds time) {
        return condition_.wait_for(lock.lock_, time) == std::cv_status::no_timeout;
    }

private:
    std::condition_variable condition_;
};

}  // namespace libddp
