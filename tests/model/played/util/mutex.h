// lib/util/mutex.h with the mutex of the model checker. A condition variable: its waits end the
// execution unless they need not wait.
#pragma once

#include "checker.h"

#define DDP_GUARDED_BY(mutex)
#define DDP_REQUIRES(mutex)
#define DDP_UNCHECKED_LOCKS

namespace libddp {

class Mutex {
public:
    Mutex() { __VERIFIER_mutex_init(&mutex_, nullptr); }

private:
    friend class Lock;
    __VERIFIER_mutex_t mutex_;
};

class Lock {
public:
    explicit Lock(Mutex& mutex) : mutex_(mutex) { lock(); }
    ~Lock() { unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    void unlock() { __VERIFIER_mutex_unlock(&mutex_.mutex_); }
    void lock() { __VERIFIER_mutex_lock(&mutex_.mutex_); }

private:
    Mutex& mutex_;
};

}  // namespace libddp
