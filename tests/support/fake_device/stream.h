// Streams and events of the fake devices.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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

private:
    std::atomic<bool> done_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

struct Event {
    explicit Event(int device_);
    ~Event();

    const int device;
    std::mutex mutex;
    std::shared_ptr<Point> point;  // null: never recorded
};

class Stream {
public:
    explicit Stream(int device);

    // The stream of a handle; for null the device's default stream. Anything that is no stream of this device ends the
    // process.
    static std::shared_ptr<Stream> of(int device, void* handle);
    static void* make(int device);
    static void free(void* handle);

    void enqueue(std::function<void()> operation);
    void record(Event& event);
    void wait_for(Event& event);
    bool idle();
    std::atomic<bool> capturing{false};

    static bool all_idle();

private:
    static void run(const std::shared_ptr<Stream>& self);

    const int device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool running_ = false;
    bool closed_ = false;
};

long stream_count();
long event_count();
void set_longest_delay(long us);

}  // namespace fake
