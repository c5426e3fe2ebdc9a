// A libuv loop on a thread of its own, with what the server and the client of the tcp store need: a
// way to wake it, and a buffer for reading.
#pragma once

#include <uv.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "util/mutex.h"

namespace libddp {

class LoopThread {
public:
    // woken: on the loop's thread, some time after wake(). owner: "the store client", for messages.
    // Throws Error where libuv would end the process.
    LoopThread(const char* owner, std::function<void()> woken);
    ~LoopThread();
    LoopThread(const LoopThread&) = delete;
    LoopThread& operator=(const LoopThread&) = delete;

    uv_loop_t* loop() { return &loop_; }
    // All connections of the loop share these kReadBuffer bytes. On the loop's thread.
    char* buffer() { return buffer_.get(); }
    static constexpr std::size_t kReadBuffer = std::size_t{64} << 10;

    // Runs the loop, with the handles that `prepare` makes. Closes those if this fails. Throws
    // Error, and what `prepare` throws.
    void start(const std::function<void()>& prepare);
    // Any thread, any time.
    void wake();
    // On the loop's thread: closes all handles, so that the thread ends.
    void end();
    // Wakes the loop, which has to end(), and waits for it. The first time only.
    void stop();

private:
    uv_loop_t loop_{};
    uv_async_t wake_{};
    const std::function<void()> woken_;
    const std::unique_ptr<char[]> buffer_;  // not zeroed: pages that nobody uses cost nothing
    Mutex mutex_;
    bool ended_ DDP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
    std::atomic<bool> stopped_{false};
};

}  // namespace libddp
