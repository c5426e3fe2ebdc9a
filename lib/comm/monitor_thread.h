// The thread of a monitor: it does one thing after another, and says between them that this process
// runs.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "record/recorder.h"
#include "util/mutex.h"

namespace libddp {

class MonitorThread {
public:
    explicit MonitorThread(record::Recorder recorder) : recorder_(recorder) {}
    ~MonitorThread() { stop(); }

    // Throws LIMIT.
    void start();
    // Waits for what runs. What was posted behind that never runs.
    void stop();
    // From any thread, also before start(). An exception of `task` is logged.
    void post(std::function<void()> task);
    bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
    void loop();
    void wait_for_task(Lock& lock) DDP_REQUIRES(mutex_);

    const record::Recorder recorder_;
    Mutex mutex_;
    Condition changed_;
    std::deque<std::function<void()>> tasks_ DDP_GUARDED_BY(mutex_);
    bool stopping_ DDP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace libddp
