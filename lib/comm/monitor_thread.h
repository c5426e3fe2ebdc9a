// The thread of a monitor: it does one thing after another, and says between them that this process
// runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "record/recorder.h"

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
    void wait_for_task(std::unique_lock<std::mutex>& lock);

    const record::Recorder recorder_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace libddp
