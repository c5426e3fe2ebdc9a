// Runs the callbacks of watches, one at a time, on a thread of its own: a callback may then call
// the store, whose answers come in on another thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace libddp {

class Notifier {
public:
    using Id = std::uint64_t;
    // Gets the event (a value, or the reason of a loss) and whether it was intended.
    using Callback = std::function<void(const std::string& text, bool flag)>;

    Notifier();
    // Waits for a callback that is running, unless it is itself in one.
    ~Notifier();
    Notifier(const Notifier&) = delete;
    Notifier& operator=(const Notifier&) = delete;

    Id add(Callback callback);
    // Has the callback run soon, the first time only. An unknown id is ignored.
    void fire(Id id, std::string text, bool flag = false);
    // Afterwards the callback is not running and never will. From inside a callback: it will not
    // run again.
    void remove(Id id);
    // No callback starts any more; waits for one that is running, unless called from inside it.
    void stop();

private:
    struct State;
    static void run(const std::shared_ptr<State>& state);

    // Shared with the thread.
    std::shared_ptr<State> state_;
};

}  // namespace libddp
