// Streams and events, made of threads: those of the fake devices (fake_device.h) and of the CUDA
// runtime that a CPU plays (gpu/on_cpu).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace fake {

// A place in a stream.
class Point {
public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    void set();
    // False if the time has passed first.
    bool wait(std::chrono::nanoseconds at_most);
    void wait();
    // Once it is done.
    std::chrono::steady_clock::time_point when() const { return when_; }

private:
    std::atomic<bool> done_{false};
    std::chrono::steady_clock::time_point when_;
    std::mutex mutex_;
    std::condition_variable changed_;
};

struct Event {
    explicit Event(int device_);
    ~Event();
    // The last place that was recorded; null: none.
    std::shared_ptr<Point> last();

    const int device;
    std::mutex mutex;
    std::shared_ptr<Point> point;
};

class Stream {
public:
    explicit Stream(int device);

    // The stream of a handle; for null the device's default stream. Anything that is no stream of
    // this device ends the process.
    static std::shared_ptr<Stream> of(int device, void* handle);
    // The stream of a handle, whatever its device.
    static std::shared_ptr<Stream> of(void* handle);
    static void* make(int device);
    static void free(void* handle);

    void enqueue(std::function<void()> operation);
    void record(Event& event);
    void wait_for(Event& event);
    // Waits for all that is enqueued now: on this stream, or on any.
    void synchronize();
    static void synchronize_all();
    bool idle();
    std::atomic<bool> capturing{false};

    static bool all_idle();

private:
    static void run(const std::shared_ptr<Stream>& self);

    const int device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    std::uint64_t enqueued_ = 0, done_ = 0;
    bool closed_ = false;
};

long stream_count();
long event_count();
void set_longest_delay(long us);

[[noreturn]] void die(const char* what);

}  // namespace fake
