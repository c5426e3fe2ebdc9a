// The failure that breaks a transport, once: the first failure stands, and every later call gets it.
#pragma once

#include <atomic>
#include <mutex>

#include "util/error.h"

namespace libddp::backend {

class Failure {
public:
    // Any thread. Returns what stands.
    ErrorInfo set(ErrorInfo info) {
        const std::lock_guard lock(mutex_);
        if (info_.ok()) info_ = std::move(info);
        failed_.store(true, std::memory_order_release);
        return info_;
    }
    bool failed() const { return failed_.load(std::memory_order_acquire); }
    ErrorInfo get() const {
        const std::lock_guard lock(mutex_);
        return info_;
    }
    void check() const {
        if (failed()) throw Error(get());
    }

private:
    std::atomic<bool> failed_{false};
    mutable std::mutex mutex_;
    ErrorInfo info_;
};

}  // namespace libddp::backend
