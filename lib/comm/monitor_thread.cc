#include "comm/monitor_thread.h"

#include <utility>

#include "util/error.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {

void MonitorThread::start() {
    const Lock lock(mutex_);  // no task begins before is_this_thread() knows
    thread_ = quiet_thread([this] { loop(); });
}

void MonitorThread::stop() {
    {
        const Lock lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
}

void MonitorThread::post(std::function<void()> task) {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
}

void MonitorThread::wait_for_task(Lock& lock) {
    const auto woken = [this]() DDP_REQUIRES(mutex_) { return stopping_ || !tasks_.empty(); };
    if (!recorder_) return changed_.wait(lock, woken);
    while (!changed_.wait_until(lock, std::chrono::steady_clock::now() + record::kHeartbeat, woken))
        recorder_.beat(false);
}

void MonitorThread::loop() {
    recorder_.beat(true);
    Lock lock(mutex_);
    for (;;) {
        wait_for_task(lock);
        recorder_.beat(false);
        if (stopping_) return;
        const auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        try {
            task();
        } catch (...) {
            // the store is gone; watch_connection tells
            log(LogLevel::kDebug, "monitor: ", caught().message);
        }
        recorder_.beat(true);  // the task may have waited for the store: that is no standstill
        lock.lock();
    }
}

}  // namespace libddp
