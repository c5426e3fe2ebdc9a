#include "comm/stream_watch.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// Often enough for errors and memory; a step takes about as long.
constexpr std::chrono::milliseconds kInterval{10};

// A device that has failed does nothing more.
bool ended(const EventPtr& event) {
    try {
        return event->done();
    } catch (const Error&) {
        return true;
    }
}

}  // namespace

StreamWatch::StreamWatch(std::function<void()> check, std::function<void(const ErrorInfo&, const std::string&)> fail)
    : check_(std::move(check)), fail_(std::move(fail)) {
    thread_ = quiet_thread([this] { loop(); });
}

StreamWatch::~StreamWatch() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    thread_.join();
    if (entries_.empty()) return;
    log(LogLevel::kWarn, entries_.size(),
        " operations on a device did not end when their group was freed; their memory is not freed");
    new std::deque<Entry>(std::move(entries_));  // NOLINT: a kernel may still write there
}

void StreamWatch::add(Entry entry) {
    const std::lock_guard lock(mutex_);
    const bool idle = entries_.empty();
    entries_.push_back(std::move(entry));
    if (idle) changed_.notify_all();
}

bool StreamWatch::drain(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    for (;;) {
        remove_ended(lock);
        if (entries_.empty()) return true;
        if (deadline.expired()) return false;
        changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
}

void StreamWatch::stop_checking() {
    const std::lock_guard lock(mutex_);
    checking_ = false;
}

void StreamWatch::loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        if (entries_.empty()) {
            changed_.wait(lock);
            continue;
        }
        changed_.wait_for(lock, kInterval);
        remove_ended(lock);
        if (stopping_) return;
        if (!checking_ || entries_.empty()) continue;
        std::string what;
        const ErrorInfo error = look(what);
        if (error.ok()) continue;
        checking_ = false;
        lock.unlock();
        fail_(error, what);
        lock.lock();
    }
}

// Called with the lock held, and without it while memory is freed: that may wait for a device, and add() may not.
void StreamWatch::remove_ended(std::unique_lock<std::mutex>& lock) {
    const auto first =
        std::stable_partition(entries_.begin(), entries_.end(), [](const Entry& entry) { return !ended(entry.end); });
    std::vector<Entry> gone(std::make_move_iterator(first), std::make_move_iterator(entries_.end()));
    entries_.erase(first, entries_.end());
    if (gone.empty()) return;
    lock.unlock();
    gone.clear();
    lock.lock();
}

// Called with the lock held. What the backend says comes first: it knows more than that time has passed.
ErrorInfo StreamWatch::look(std::string& what) {
    what = entries_.front().what;
    try {
        check_();
        for (Entry& entry : entries_) {
            if (!entry.deadline && entry.begin->done()) entry.deadline = Deadline::after_ms(entry.timeout_ms);
            if (!entry.deadline || !entry.deadline->expired()) continue;
            what = entry.what;
            return {DDP_ERROR_TIMEOUT, str("an operation on the device did not end within ", entry.timeout_ms, " ms")};
        }
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

}  // namespace libddp
