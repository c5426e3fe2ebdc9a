#include "gpu/on_cpu/stream.h"

#include <vector>

namespace on_cpu {
namespace {

void* const kPerThread = reinterpret_cast<void*>(2);

std::mutex all_mutex;
std::vector<std::weak_ptr<Progress>> all_progress;

std::shared_ptr<Progress> new_progress() {
    auto created = std::make_shared<Progress>();
    const std::lock_guard lock(all_mutex);
    std::erase_if(all_progress, [](const auto& known) { return known.expired(); });
    all_progress.push_back(created);
    return created;
}

}  // namespace

Stream::Stream() : progress_(new_progress()), thread_([this] { loop(); }) {}

Stream::~Stream() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Stream::enqueue(std::function<void()> work) {
    {
        const std::lock_guard lock(progress_->mutex);
        ++progress_->enqueued;
    }
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
        {
            const std::lock_guard noting(progress_->mutex);
            ++progress_->done;
            progress_->changed.notify_all();
        }
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

void synchronize_all() {
    std::vector<std::shared_ptr<Progress>> streams;
    {
        const std::lock_guard lock(all_mutex);
        for (const auto& known : all_progress)
            if (auto progress = known.lock()) streams.push_back(std::move(progress));
    }
    for (const auto& progress : streams) {
        std::unique_lock lock(progress->mutex);
        progress->changed.wait(lock, [&, until = progress->enqueued] { return progress->done >= until; });
    }
}

Stream& stream_of(void* stream) {
    static Stream& legacy = *new Stream;
    if (!stream) return legacy;
    if (stream != kPerThread) return *static_cast<Stream*>(stream);
    thread_local const std::unique_ptr<Stream> own = std::make_unique<Stream>();
    return *own;
}

}  // namespace on_cpu
