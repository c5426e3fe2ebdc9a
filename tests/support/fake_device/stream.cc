#include "support/fake_device/stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <utility>
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

// Guards all captures and what streams have of them.
std::mutex& captures() {
    static std::mutex& instance = *new std::mutex;
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

bool Event::captured() {
    const std::lock_guard lock(mutex);
    return is_captured;
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
    {
        const std::lock_guard capture_lock(captures());
        if (stream->capture_) stream->capture_->streams_[stream->lane_] = nullptr;
    }
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
    {
        const std::lock_guard lock(captures());
        if (capture_) {
            capture_->lanes_[lane_].push_back({std::move(operation)});
            return;
        }
    }
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    ++enqueued_;
    changed_.notify_all();
}

void Stream::record(Event& event) {
    auto point = std::make_shared<Point>();
    {
        const std::lock_guard lock(captures());
        const std::lock_guard event_lock(event.mutex);
        event.is_captured = static_cast<bool>(capture_);
        event.point = capture_ ? nullptr : point;
        if (capture_) {
            event.place = {capture_, lane_, capture_->lanes_[lane_].size()};
            return;
        }
    }
    enqueue([point] { point->set(); });
}

bool Stream::wait_for(Event& event) {
    std::shared_ptr<Point> point;
    {
        const std::lock_guard lock(captures());
        const std::lock_guard event_lock(event.mutex);
        point = event.point;
        if (event.is_captured) {
            const auto of_event = event.place.capture.lock();
            const bool goes_on = of_event && !of_event->streams_.empty();
            if (!goes_on || (capture_ && capture_ != of_event)) {
                if (goes_on) of_event->lost_ = true;
                if (capture_) capture_->lost_ = true;
                return false;
            }
            if (!capture_) {
                capture_ = of_event;
                lane_ = of_event->join(*this);
            }
            capture_->lanes_[lane_].push_back({nullptr, event.place.lane, event.place.position});
            return true;
        }
        if (!point) return true;
        if (capture_) {
            capture_->lost_ = true;
            return false;
        }
    }
    enqueue([point] { point->wait(); });
    return true;
}

void Stream::begin_capture() {
    static std::uint64_t last_id = 0;
    const std::lock_guard lock(captures());
    if (capture_) die("a capture begins on a stream that is being captured");
    capture_ = std::make_shared<Capture>(++last_id);
    lane_ = capture_->join(*this);
}

std::shared_ptr<Capture> Stream::end_capture() {
    std::shared_ptr<Capture> ended;  // destroyed without the lock
    const std::lock_guard lock(captures());
    ended = capture_;
    if (!ended || lane_ != 0) die("a capture ends on a stream on which it did not begin");
    const bool whole = ended->all_joined() && !ended->lost_;
    for (Stream* stream : std::exchange(ended->streams_, {}))
        if (stream) stream->capture_ = nullptr;
    return whole ? ended : nullptr;
}

std::shared_ptr<Capture> Stream::capture() {
    const std::lock_guard lock(captures());
    return capture_;
}

void Stream::launch(std::shared_ptr<Capture> graph) {
    const auto begin = std::make_shared<Point>(), end = std::make_shared<Point>();
    enqueue([begin] { begin->set(); });
    graph->replay(begin, end);
    enqueue([end] { end->wait(); });
}

Capture::~Capture() {
    for (const auto& last : at_end_) last();
}

void Capture::at_end(std::function<void()> last) {
    const std::lock_guard lock(captures());
    at_end_.push_back(std::move(last));
}

std::size_t Capture::join(Stream& stream) {
    lanes_.emplace_back();
    streams_.push_back(&stream);
    return lanes_.size() - 1;
}

// Whether the end of the first lane comes after all others.
bool Capture::all_joined() const {
    std::vector<std::size_t> reached(lanes_.size(), 0), looked(lanes_.size(), 0);
    reached[0] = lanes_[0].size();
    for (bool more = true; more;) {
        more = false;
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
            for (; looked[lane] < reached[lane]; ++looked[lane]) {
                const Operation& operation = lanes_[lane][looked[lane]];
                more = true;
                if (!operation.run)
                    reached[operation.lane] = std::max(reached[operation.lane], operation.position);
            }
    }
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
        if (reached[lane] < lanes_[lane].size()) return false;
    return true;
}

void Capture::replay(const std::shared_ptr<Point>& begin, const std::shared_ptr<Point>& end) const {
    const auto self = shared_from_this();
    // places that somebody waits for
    std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<Point>> places;
    for (const Lane& lane : lanes_)
        for (const Operation& operation : lane)
            if (!operation.run)
                places.try_emplace({operation.lane, operation.position}, std::make_shared<Point>());
    const auto left = std::make_shared<std::atomic<std::size_t>>(lanes_.size());
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        void* const handle = Stream::make(0);
        Stream& stream = *Stream::of(handle);
        stream.enqueue([begin] { begin->wait(); });
        for (std::size_t position = 0;; ++position) {
            if (const auto place = places.find({lane, position}); place != places.end())
                stream.enqueue([point = place->second] { point->set(); });
            if (position == lanes_[lane].size()) break;
            const Operation& operation = lanes_[lane][position];
            if (operation.run)
                stream.enqueue([self, &operation] { operation.run(); });
            else
                stream.enqueue(
                    [point = places.at({operation.lane, operation.position})] { point->wait(); });
        }
        stream.enqueue([left, end, self] {
            if (--*left == 0) end->set();
        });
        Stream::free(handle);
    }
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
