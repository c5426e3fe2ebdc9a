#include "backends/gloo/watchdog.h"

#include "util/quiet_thread.h"

namespace libddp::gloo_tcp {

Watchdog::Watchdog(Mesh& mesh) : mesh_(mesh) {
    thread_ = quiet_thread([this] { persist("the watchdog of backend gloo", [this] { loop(); }); });
}

Watchdog::~Watchdog() {
    {
        const Lock lock(mutex_);
        stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Watchdog::arm(const Deadline& deadline) {
    {
        const Lock lock(mutex_);
        deadline_ = deadline;
        fired_ = false;
    }
    changed_.notify_one();
}

bool Watchdog::disarm() {
    // No wake-up: at worst the thread wakes once more, at the old deadline, and finds nothing to
    // do.
    const Lock lock(mutex_);
    deadline_.reset();
    return fired_;
}

void Watchdog::loop() {
    Lock lock(mutex_);
    while (!stop_) {
        if (!deadline_) {
            changed_.wait(lock);
        } else if (!deadline_->expired()) {
            changed_.wait_until(lock, deadline_->at());
        } else {
            fired_ = true;
            lock.unlock();
            mesh_.poison();
            lock.lock();
            // Another operation may have armed it meanwhile. If poison() has thrown, the deadline
            // brings it here again.
            if (deadline_ && deadline_->expired()) deadline_.reset();
        }
    }
}

}  // namespace libddp::gloo_tcp
