#include "rendezvous/notifier.h"

#include <deque>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "util/log.h"
#include "util/mutex.h"
#include "util/quiet_thread.h"

namespace libddp {

struct Notifier::State {
    struct Event {
        Id id;
        std::string text;
        bool flag;
    };

    Mutex mutex;
    Condition changed;
    std::map<Id, Callback> callbacks DDP_GUARDED_BY(mutex);
    std::deque<Event> events DDP_GUARDED_BY(mutex);
    Id next DDP_GUARDED_BY(mutex) = 1;
    Id running DDP_GUARDED_BY(mutex) = 0;  // 0: none
    // Started with the first callback. It outlives a notifier that dies inside a callback.
    std::thread thread DDP_GUARDED_BY(mutex);
    bool stopping DDP_GUARDED_BY(mutex) = false;
};

Notifier::Notifier() : state_(std::make_shared<State>()) {}

Notifier::~Notifier() {
    stop();
    std::thread& thread = state_->thread;
    if (!thread.joinable()) return;
    if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
    else
        thread.join();
}

Notifier::Id Notifier::add(Callback callback) {
    const Lock lock(state_->mutex);
    if (!state_->thread.joinable() && !state_->stopping)
        state_->thread = quiet_thread([state = state_] { run(state); });
    Id id = state_->next++;
    state_->callbacks.emplace(id, std::move(callback));
    return id;
}

void Notifier::fire(Id id, std::string text, bool flag) {
    const Lock lock(state_->mutex);
    if (state_->stopping || state_->callbacks.find(id) == state_->callbacks.end()) return;
    state_->events.push_back({id, std::move(text), flag});
    state_->changed.notify_all();
}

void Notifier::remove(Id id) {
    Lock lock(state_->mutex);
    // destroyed after the lock: its captures may call back
    auto callback = state_->callbacks.extract(id);
    if (state_->thread.get_id() == std::this_thread::get_id()) return;
    state_->changed.wait(lock, [&]() DDP_REQUIRES(state_->mutex) { return state_->running != id; });
    lock.unlock();
}

void Notifier::stop() {
    std::map<Id, Callback> dropped;
    Lock lock(state_->mutex);
    state_->stopping = true;
    state_->events.clear();
    dropped.swap(state_->callbacks);
    state_->changed.notify_all();
    if (state_->thread.get_id() != std::this_thread::get_id())
        state_->changed.wait(lock,
                             [&]() DDP_REQUIRES(state_->mutex) { return state_->running == 0; });
    lock.unlock();
}

void Notifier::run(const std::shared_ptr<State>& state) {
    Lock lock(state->mutex);
    while (true) {
        state->changed.wait(lock, [&]() DDP_REQUIRES(state->mutex) {
            return state->stopping || !state->events.empty();
        });
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
