#include "comm/stream_watch.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "util/log.h"
#include "util/mutex.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// Often enough for errors and memory; a step takes about as long.
constexpr std::chrono::milliseconds kInterval{10}, kSoon{1};
// Between two looks at the clock, for calls that do not return.
constexpr std::chrono::milliseconds kTick{100};
// How much longer than the operation's own timeout a backend may take to enqueue it: it knows best
// why that takes long.
constexpr std::int64_t kEnqueueMs = 1000;
// How long a group that is freed waits for the device's answer.
constexpr std::chrono::milliseconds kAnswer{1000};

// A device that has failed does nothing more.
bool ended(const EventPtr& event) {
    try {
        return event->done();
    } catch (const Error&) {
        return true;
    }
}

}  // namespace

struct StreamWatch::Shared {
    // A function of the device's or of the backend's that a thread is inside.
    struct Call {
        Deadline deadline;
        std::int64_t allowed_ms = 0;
        Signature what{};
    };
    using Calls = std::list<Call>;

    Calls::iterator begin_call(std::int64_t allowed_ms, const Signature& what) DDP_REQUIRES(mutex) {
        return calls.insert(calls.end(), {Deadline::after_ms(allowed_ms), allowed_ms, what});
    }
    bool idle() const DDP_REQUIRES(mutex) { return entries.empty() && calls.empty(); }

    void ask_until_stopped();
    // Both let go of the lock meanwhile.
    void ask(Lock& lock) DDP_REQUIRES(mutex) DDP_UNCHECKED_LOCKS;
    ErrorInfo look(const std::vector<std::shared_ptr<Entry>>& running, Signature& what) const;
    void watch_time_until_stopped();
    void report(Lock& lock, ErrorInfo error, const Signature& what)
        DDP_REQUIRES(mutex) DDP_UNCHECKED_LOCKS;

    std::function<void()> check;
    std::function<void(const ErrorInfo&, const Signature&)> fail;
    Mutex mutex;  // nobody calls the device with it
    Condition to_ask, to_time, answered;
    std::deque<std::shared_ptr<Entry>> entries DDP_GUARDED_BY(mutex);
    Calls calls DDP_GUARDED_BY(mutex);
    int draining DDP_GUARDED_BY(mutex) = 0;  // threads that want to know soon
    bool asking DDP_GUARDED_BY(mutex) = false;
    bool checking DDP_GUARDED_BY(mutex) = true;
    bool stopping DDP_GUARDED_BY(mutex) = false;
    bool asker_ended DDP_GUARDED_BY(mutex) = false;
};

StreamWatch::StreamWatch(std::function<void()> check,
                         std::function<void(const ErrorInfo&, const Signature&)> fail)
    : shared_(std::make_shared<Shared>()) {
    shared_->check = std::move(check);
    shared_->fail = std::move(fail);
    timer_ = quiet_thread([shared = shared_] { shared->watch_time_until_stopped(); });
    try {
        asker_ = quiet_thread([shared = shared_] { shared->ask_until_stopped(); });
    } catch (...) {
        {
            const Lock lock(shared_->mutex);
            shared_->asker_ended = true;
        }
        stop();
        throw;
    }
}

StreamWatch::~StreamWatch() {
    stop();
}

bool StreamWatch::stop() {
    Lock lock(shared_->mutex);
    if (std::exchange(shared_->stopping, true)) return shared_->asker_ended;
    shared_->to_ask.notify_all();
    shared_->to_time.notify_all();
    const bool answered = shared_->answered.wait_until(
        lock, std::chrono::steady_clock::now() + kAnswer,
        [&]() DDP_REQUIRES(shared_->mutex) { return shared_->asker_ended; });
    auto left = std::exchange(shared_->entries, {});
    lock.unlock();
    timer_.join();
    if (asker_.joinable() && answered)
        asker_.join();
    else if (asker_.joinable())
        asker_.detach();
    if (!left.empty()) {
        log(LogLevel::kWarn, left.size(),
            " operations on a device did not end when their group was freed; their memory is not "
            "freed");
        new auto(std::move(left));  // NOLINT: a kernel may still write there
    }
    return answered;
}

void StreamWatch::enqueue(Entry entry, const std::function<void(Entry&)>& call) {
    const auto added = std::make_shared<Entry>(std::move(entry));
    Lock lock(shared_->mutex);
    if (shared_->idle()) shared_->to_time.notify_all();
    const auto inside = shared_->begin_call(added->timeout_ms + kEnqueueMs, added->what);
    lock.unlock();
    try {
        call(*added);
    } catch (...) {
        lock.lock();
        shared_->calls.erase(inside);
        throw;
    }
    lock.lock();
    shared_->calls.erase(inside);
    if (!added->end) return;
    if (shared_->entries.empty()) shared_->to_ask.notify_all();
    shared_->entries.push_back(added);
}

bool StreamWatch::drain(const Deadline& deadline) {
    Lock lock(shared_->mutex);
    ++shared_->draining;
    shared_->to_ask.notify_all();
    shared_->answered.wait_until(lock, deadline.at(), [&]() DDP_REQUIRES(shared_->mutex) {
        return shared_->entries.empty() && !shared_->asking;
    });
    --shared_->draining;
    return shared_->entries.empty();  // the memory of the last ones may still be on its way
}

void StreamWatch::stop_checking() {
    const Lock lock(shared_->mutex);
    shared_->checking = false;
}

bool StreamWatch::on_own_thread() const {
    return std::this_thread::get_id() == asker_.get_id() ||
           std::this_thread::get_id() == timer_.get_id();
}

void StreamWatch::Shared::ask_until_stopped() {
    Lock lock(mutex);
    while (!stopping) {
        if (entries.empty())
            to_ask.wait(lock);
        else if (to_ask.wait_for(lock, draining > 0 ? kSoon : kInterval); !stopping)
            ask(lock);
    }
    asker_ended = true;
    answered.notify_all();
}

// Without the lock the device is asked, and memory is freed, which may wait for a device.
void StreamWatch::Shared::ask(Lock& lock) {
    std::vector<std::shared_ptr<Entry>> asked(entries.begin(), entries.end());
    const bool checked = checking;
    const auto inside = begin_call(asked.front()->timeout_ms, asked.front()->what);
    asking = true;
    lock.unlock();

    std::vector<std::shared_ptr<Entry>> running, over;
    for (const auto& entry : asked) (ended(entry->end) ? over : running).push_back(entry);
    ErrorInfo error;
    Signature what{};
    if (checked && !running.empty()) error = look(running, what);

    lock.lock();
    std::erase_if(entries, [&](const auto& entry) {
        return std::find(over.begin(), over.end(), entry) != over.end();
    });
    asked.clear();
    running.clear();
    while (!over.empty()) {  // each has its time
        inside->deadline = Deadline::after_ms(inside->allowed_ms);
        lock.unlock();
        over.pop_back();
        lock.lock();
    }
    calls.erase(inside);
    asking = false;
    answered.notify_all();
    if (!error.ok()) report(lock, error, what);
}

// The backend's error comes first: it knows more than that time has passed.
ErrorInfo StreamWatch::Shared::look(const std::vector<std::shared_ptr<Entry>>& running,
                                    Signature& what) const {
    what = running.front()->what;
    try {
        check();
        for (const auto& entry : running) {
            if (!entry->deadline && entry->begin->done())
                entry->deadline = Deadline::after_ms(entry->timeout_ms);
            if (!entry->deadline || !entry->deadline->expired()) continue;
            what = entry->what;
            return {DDP_ERROR_TIMEOUT, str("an operation on the device did not end within ",
                                           entry->timeout_ms, " ms")};
        }
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

void StreamWatch::Shared::watch_time_until_stopped() {
    Lock lock(mutex);
    while (!stopping) {
        if (idle() || !checking)
            to_time.wait(lock);
        else
            to_time.wait_for(lock, kTick);
        const auto late = std::find_if(calls.begin(), calls.end(),
                                       [](const Call& call) { return call.deadline.expired(); });
        if (stopping || late == calls.end()) continue;
        report(lock,
               {DDP_ERROR_TIMEOUT, str("the device did not answer within ", late->allowed_ms,
                                       " ms; a thread of this process may be allocating memory, "
                                       "which can wait for kernels")},
               Signature(late->what));
    }
}

void StreamWatch::Shared::report(Lock& lock, ErrorInfo error, const Signature& what) {
    if (stopping || !std::exchange(checking, false)) return;
    lock.unlock();
    error.bucket = what.bucket;
    error.step = what.step;
    fail(error, what);
    lock.lock();
}

}  // namespace libddp
