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
#include <vector>

namespace fake {

class Capture;

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
    // A place in a stream that is being captured, of which this is the lane.
    struct Captured {
        std::weak_ptr<Capture> capture;
        std::size_t lane = 0, position = 0;
    };

    explicit Event(int device_);
    ~Event();
    // The last place that was recorded; null: none, or one that was captured.
    std::shared_ptr<Point> last();
    bool captured();

    const int device;
    std::mutex mutex;
    std::shared_ptr<Point> point;
    bool is_captured = false;
    Captured place;
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

    // While the stream is captured these become part of the graph.
    void enqueue(std::function<void()> operation);
    void record(Event& event);
    // Joins the capture of the event. False, and the capture is lost, where a device would say so:
    // the event is of no capture, or of another one.
    [[nodiscard]] bool wait_for(Event& event);

    // As CUDA's: what follows on the stream becomes a graph, and what waits for it, too.
    void begin_capture();
    // The graph; null, and the capture is lost: some stream of it was not waited for in the end.
    std::shared_ptr<Capture> end_capture();
    // Null: it is not captured.
    std::shared_ptr<Capture> capture();
    // Runs the graph, after what is on this stream now and before what follows.
    void launch(std::shared_ptr<Capture> graph);

    // Waits for all that is enqueued now: on this stream, or on any.
    void synchronize();
    static void synchronize_all();
    bool idle();
    static bool all_idle();

private:
    friend class Capture;

    static void run(const std::shared_ptr<Stream>& self);

    const int device_;
    std::mutex mutex_;
    std::shared_ptr<Capture> capture_;  // with the mutex of captures
    std::size_t lane_ = 0;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    std::uint64_t enqueued_ = 0, done_ = 0;
    bool closed_ = false;
};

// Streams that were captured together, and then their graph: a lane for each, in which operations
// follow each other, and wait for places in other lanes. It runs on new streams each time.
class Capture : public std::enable_shared_from_this<Capture> {
public:
    explicit Capture(std::uint64_t id) : id_(id) {}
    ~Capture();

    std::uint64_t id() const { return id_; }
    // Called when nobody has the graph any more.
    void at_end(std::function<void()> last);

private:
    friend class Stream;

    struct Operation {
        std::function<void()> run;  // empty: waits
        std::size_t lane = 0, position = 0;
    };
    using Lane = std::vector<Operation>;

    std::size_t join(Stream& stream);
    bool all_joined() const;
    void replay(const std::shared_ptr<Point>& begin, const std::shared_ptr<Point>& end) const;

    const std::uint64_t id_;
    std::vector<Lane> lanes_;
    std::vector<Stream*> streams_;  // null: gone since
    std::vector<std::function<void()>> at_end_;
    bool lost_ = false;
};

long stream_count();
long event_count();
void set_longest_delay(long us);

[[noreturn]] void die(const char* what);

}  // namespace fake
