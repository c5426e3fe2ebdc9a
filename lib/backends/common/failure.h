// The failure that breaks a transport, once: the first failure stands, and every later call gets
// it.
#pragma once

#include <atomic>

#include "util/error.h"
#include "util/mutex.h"

namespace libddp::backend {

class Failure {
public:
    // Any thread. Returns what stands.
    ErrorInfo set(ErrorInfo info) {
        const Lock lock(mutex_);
        if (info_.ok()) info_ = std::move(info);
        failed_.store(true, std::memory_order_release);
        return info_;
    }
    // Pairs with set(): the failure stands.
    bool failed() const { return failed_.load(std::memory_order_acquire); }
    ErrorInfo get() const {
        const Lock lock(mutex_);
        return info_;
    }
    void check() const {
        if (failed()) throw Error(get());
    }

    // Carries out an operation of the transport. What it throws is a failure. broken(info): what
    // this rank does about a failure before it is thrown, in this call and in every later one.
    template <class Operation, class Broken>
    void guard(Operation operation, Broken broken) {
        const auto throw_failure = [&] {
            if (!failed()) return;
            const ErrorInfo info = get();
            broken(info);
            throw Error(info);
        };
        throw_failure();
        try {
            operation();
        } catch (...) {
            set(caught());
        }
        // Also an abort after the last byte: it promised that this call fails.
        throw_failure();
    }

private:
    std::atomic<bool> failed_{false};
    mutable Mutex mutex_;
    ErrorInfo info_ DDP_GUARDED_BY(mutex_);
};

}  // namespace libddp::backend
