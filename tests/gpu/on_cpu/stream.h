// Streams and events of CUDA's runtime, played by threads: what is enqueued runs in order, later, and nobody waits for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace on_cpu {

// How much was enqueued on a stream, and how much of it is done.
struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t enqueued = 0, done = 0;
};

class Stream {
public:
    Stream();
    ~Stream();  // what is enqueued runs first
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    void enqueue(std::function<void()> work);
    void synchronize();
    bool capturing = false;

private:
    void loop();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> work_;
    bool busy_ = false, ending_ = false;
    const std::shared_ptr<Progress> progress_;
    std::thread thread_;
};

// A point of a stream, once recorded. Waiters keep the point that they waited for.
struct Point {
    std::mutex mutex;
    std::condition_variable reached_changed;
    bool reached = false;
    std::chrono::steady_clock::time_point when;
    void reach();
    void wait();
};

struct Event {
    std::mutex mutex;
    std::shared_ptr<Point> point;  // null: never recorded
};

// Waits for all that is enqueued now on any stream: what CUDA's functions that allocate and free may do.
void synchronize_all();

// The legacy default stream for null; there is one for all devices. The calling thread's for the handle of cudaStreamPerThread.
Stream& stream_of(void* stream);

}  // namespace on_cpu
