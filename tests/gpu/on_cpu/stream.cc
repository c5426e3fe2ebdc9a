#include "gpu/on_cpu/stream.h"

namespace on_cpu {
namespace {

void* const kPerThread = reinterpret_cast<void*>(2);

}  // namespace

Stream::Stream() : thread_([this] { loop(); }) {}

Stream::~Stream() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Stream::enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
}

void Stream::synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !busy_; });
}

void Stream::loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return !work_.empty() || ending_; });
        if (work_.empty()) return;
        const auto work = std::move(work_.front());
        work_.pop_front();
        busy_ = true;
        lock.unlock();
        work();
        lock.lock();
        busy_ = false;
        changed_.notify_all();
    }
}

void Point::reach() {
    const std::lock_guard lock(mutex);
    reached = true;
    when = std::chrono::steady_clock::now();
    reached_changed.notify_all();
}

void Point::wait() {
    std::unique_lock lock(mutex);
    reached_changed.wait(lock, [&] { return reached; });
}

Stream& stream_of(void* stream) {
    static Stream& legacy = *new Stream;
    if (!stream) return legacy;
    if (stream != kPerThread) return *static_cast<Stream*>(stream);
    thread_local const std::unique_ptr<Stream> own = std::make_unique<Stream>();
    return *own;
}

}  // namespace on_cpu
