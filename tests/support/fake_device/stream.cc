#include "support/fake_device/stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace fake {
namespace {

std::atomic<long> events{0};
std::atomic<long> longest_delay{100};

// All streams; those of the defaults (by device) live for ever.
struct Registry {
    std::mutex mutex;
    std::map<void*, std::shared_ptr<Stream>> streams;
    std::shared_ptr<Stream> defaults[2];
    std::vector<std::weak_ptr<Stream>> closed;  // still at work
};

Registry& registry() {
    static Registry& instance = *new Registry;
    return instance;
}

void start(const std::shared_ptr<Stream>& stream, void (*run)(const std::shared_ptr<Stream>&)) {
    std::thread([stream, run] { run(stream); }).detach();
}

}  // namespace

void die(const char* what) {
    std::fprintf(stderr, "fake device: %s\n", what);
    std::abort();
}

void Point::set() {
    const std::lock_guard lock(mutex_);
    when_ = std::chrono::steady_clock::now();
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
}

bool Point::wait(std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [this] { return done(); });
}

void Point::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done(); });
}

Event::Event(int device_) : device(device_) {
    ++events;
}
Event::~Event() {
    --events;
}

std::shared_ptr<Point> Event::last() {
    const std::lock_guard lock(mutex);
    return point;
}

Stream::Stream(int device) : device_(device) {}

void* Stream::make(int device) {
    auto stream = std::make_shared<Stream>(device);
    start(stream, &Stream::run);
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    void* handle = stream.get();
    r.streams[handle] = std::move(stream);
    return handle;
}

void Stream::free(void* handle) {
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto found = r.streams.find(handle);
    if (found == r.streams.end()) die("a stream is destroyed that does not exist");
    const auto stream = std::move(found->second);
    r.streams.erase(found);
    r.closed.push_back(stream);
    const std::lock_guard stream_lock(stream->mutex_);
    stream->closed_ = true;
    stream->changed_.notify_all();
}

std::shared_ptr<Stream> Stream::of(int device, void* handle) {
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    if (!handle) {
        auto& stream = r.defaults[device];
        if (!stream) {
            stream = std::make_shared<Stream>(device);
            start(stream, &Stream::run);
        }
        return stream;
    }
    const auto found = r.streams.find(handle);
    if (found == r.streams.end()) die("a stream is used that does not exist");
    if (device >= 0 && found->second->device_ != device)
        die("a stream is used that is not of the device");
    return found->second;
}

std::shared_ptr<Stream> Stream::of(void* handle) {
    return of(-1, handle);
}

void Stream::enqueue(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    if (capturing) die("something is enqueued on a stream that is being captured");
    queue_.push_back(std::move(operation));
    ++enqueued_;
    changed_.notify_all();
}

void Stream::record(Event& event) {
    auto point = std::make_shared<Point>();
    {
        const std::lock_guard lock(event.mutex);
        event.point = point;
    }
    enqueue([point] { point->set(); });
}

void Stream::wait_for(Event& event) {
    if (const auto point = event.last()) enqueue([point] { point->wait(); });
}

void Stream::synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, until = enqueued_] { return done_ >= until; });
}

void Stream::synchronize_all() {
    std::vector<std::shared_ptr<Stream>> all;
    {
        auto& r = registry();
        const std::lock_guard lock(r.mutex);
        std::erase_if(r.closed, [](const auto& stream) { return stream.expired(); });
        for (const auto& stream : r.defaults)
            if (stream) all.push_back(stream);
        for (const auto& [handle, stream] : r.streams) all.push_back(stream);
        for (const auto& closed : r.closed)
            if (auto stream = closed.lock()) all.push_back(std::move(stream));
    }
    for (const auto& stream : all) stream->synchronize();
}

bool Stream::idle() {
    const std::lock_guard lock(mutex_);
    return done_ == enqueued_;
}

bool Stream::all_idle() {
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    std::erase_if(r.closed, [](const auto& stream) { return stream.expired(); });
    if (!r.closed.empty()) return false;
    for (const auto& stream : r.defaults)
        if (stream && !stream->idle()) return false;
    return std::all_of(r.streams.begin(), r.streams.end(),
                       [](const auto& entry) { return entry.second->idle(); });
}

void Stream::run(const std::shared_ptr<Stream>& self) {
    std::minstd_rand random(
        static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(self.get()) >> 4));
    Stream& s = *self;
    std::unique_lock lock(s.mutex_);
    for (;;) {
        s.changed_.wait(lock, [&s] { return !s.queue_.empty() || s.closed_; });
        if (s.queue_.empty()) return;
        auto operation = std::move(s.queue_.front());
        s.queue_.pop_front();
        lock.unlock();
        if (const long longest = longest_delay; longest > 0 && random() % 4 == 0)
            std::this_thread::sleep_for(
                std::chrono::microseconds(random() % static_cast<unsigned>(longest)));
        operation();
        operation = nullptr;
        lock.lock();
        ++s.done_;
        s.changed_.notify_all();
    }
}

long stream_count() {
    auto& r = registry();
    const std::lock_guard lock(r.mutex);
    return static_cast<long>(r.streams.size());
}
long event_count() {
    return events;
}
void set_longest_delay(long us) {
    longest_delay = us;
}

}  // namespace fake
