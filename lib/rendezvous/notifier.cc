#include "rendezvous/notifier.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {

struct Notifier::State {
    struct Event {
        Id id;
        std::string text;
        bool flag;
    };

    std::mutex mutex;
    std::condition_variable changed;
    std::map<Id, Callback> callbacks;
    std::deque<Event> events;
    Id next = 1;
    Id running = 0;  // 0: none
    std::thread::id thread;
    bool stopping = false;
};

Notifier::Notifier() : state_(std::make_shared<State>()) {}

Notifier::~Notifier() {
    stop();
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();
    else
        thread_.join();
}

Notifier::Id Notifier::add(Callback callback) {
    std::lock_guard lock(state_->mutex);
    if (!thread_.joinable() && !state_->stopping) {
        thread_ = quiet_thread([state = state_] { run(state); });
        state_->thread = thread_.get_id();
    }
    Id id = state_->next++;
    state_->callbacks.emplace(id, std::move(callback));
    return id;
}

void Notifier::fire(Id id, std::string text, bool flag) {
    std::lock_guard lock(state_->mutex);
    if (state_->stopping || state_->callbacks.find(id) == state_->callbacks.end()) return;
    state_->events.push_back({id, std::move(text), flag});
    state_->changed.notify_all();
}

void Notifier::remove(Id id) {
    std::unique_lock lock(state_->mutex);
    // destroyed after the lock: its captures may call back
    auto callback = state_->callbacks.extract(id);
    if (state_->thread == std::this_thread::get_id()) return;
    state_->changed.wait(lock, [&] { return state_->running != id; });
    lock.unlock();
}

void Notifier::stop() {
    std::map<Id, Callback> dropped;
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->events.clear();
    dropped.swap(state_->callbacks);
    state_->changed.notify_all();
    if (state_->thread != std::this_thread::get_id())
        state_->changed.wait(lock, [&] { return state_->running == 0; });
    lock.unlock();
}

void Notifier::run(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    while (true) {
        state->changed.wait(lock, [&] { return state->stopping || !state->events.empty(); });
        if (state->stopping) return;
        State::Event event = std::move(state->events.front());
        state->events.pop_front();
        auto callback = state->callbacks.extract(event.id);
        if (callback.empty()) continue;
        state->running = event.id;
        lock.unlock();
        try {
            callback.mapped()(event.text, event.flag);
        } catch (...) {
            log(LogLevel::kError, "a watch of the store failed: ", caught().message);
        }
        // its captures may hold the store: let go of them while nobody waits for the lock
        callback = {};
        lock.lock();
        state->running = 0;
        state->changed.notify_all();
    }
}

}  // namespace libddp
