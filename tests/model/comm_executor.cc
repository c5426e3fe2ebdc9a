// A group whose executor has stopped may free its memory: no thread of the program is inside an
// operation, and none begins one. The thread that stops the executor is woken.
//
// with lib/comm/executor.cc: std::optional<ErrorInfo> Executor::run_now => MaybeError Executor::run_now
// with lib/comm/executor.cc: poison(reason); { Lock lock(mutex_); stopping_ = true; => { Lock lock(mutex_); poison_ = reason; stopping_ = true;
// with lib/comm/executor.cc: if (thread_.get_id() == std::this_thread::get_id()) thread_.detach(); => if (false) thread_.detach();
// also kThreads = 1 => kThreads = 2
// weaken lib/comm/executor.cc: operating_ = true; lock.unlock(); => lock.unlock(); operating_ = true;
// weaken lib/comm/executor.cc: operating_ = false; lock.lock(); wake_others(); => operating_.store(false, std::memory_order_relaxed); lock.lock(); wake_others();
// weaken lib/comm/executor.cc: lock.lock(); wake_others(); return result; => lock.lock(); return result;
// weaken lib/comm/executor.cc: changed_.wait(lock, [&] { return !operating_ || holds_turn(); }); => nothing
// weaken lib/comm/executor.cc: return !poison_.ok() || turn_taken_ => return turn_taken_
#include <atomic>
#include <optional>

#include "checker.h"
#include "util/mutex.h"

namespace libddp {
namespace {

constexpr int kThreads = 1;

bool memory = true;  // of the group
bool asleep = false;

// A thread that would sleep ends.
class Condition {
public:
    void notify_all() { asleep = false; }
    template <class Ready>
    void wait(Lock& lock, Ready ready) {
        if (ready()) return;
        asleep = true;
        lock.unlock();
        __VERIFIER_thread_exit(nullptr);
    }
};

struct ErrorInfo {
    ErrorInfo(int number = 0) : code(number) {}
    ErrorInfo(const ErrorInfo& other) : code(other.code) {}
    void operator=(const ErrorInfo& other) { code = other.code; }
    bool ok() const { return code == 0; }
    int code;
};
class MaybeError {
public:
    MaybeError(std::nullopt_t) {}
    MaybeError(const ErrorInfo&) {}
    MaybeError(const MaybeError&) {}

private:
    ErrorInfo error_;
};
struct Operation {
    ErrorInfo run() {
        ALWAYS(memory);
        return {};
    }
};

// Nothing is queued.
struct Nothing {
    bool empty() const { return true; }
    bool siblings() const { return false; }
};
struct NoThread {
    int get_id() const { return 1; }
    bool joinable() const { return false; }
    void join() {}
    void detach() {}
};
enum class Runner { kAnyone, kProgressThread };

class Executor {
public:
    MaybeError run_now(Operation& operation);
    void stop(const ErrorInfo& reason);

private:
    struct Turn {
        Turn(Executor&, bool& taken) : taken_(taken) { taken_ = true; }
        ~Turn() { taken_ = false; }
        bool& taken_;
    };
    bool may_lend() const { return true; }
    bool holds_turn() const { return false; }
    bool anything_before() const;
    void wake_others();

    const Runner runner_ = Runner::kAnyone;
    Mutex mutex_;
    Condition changed_;
    Nothing queue_, callbacks_;
    bool turn_taken_ = false;
    int helpers_ = 0;
    std::atomic<bool> operating_{false};
    bool stopping_ = false;
    ErrorInfo poison_;
    NoThread thread_;
};

// from lib/comm/executor.cc: Executor::anything_before
// from lib/comm/executor.cc: Executor::run_now
// from lib/comm/executor.cc: Executor::wake_others
// from lib/comm/executor.cc: Executor::stop

Executor executor;

void* run(void*) {
    Operation operation;
    executor.run_now(operation);
    return nullptr;
}

void* stop(void*) {
    executor.stop(ErrorInfo(1));
    memory = false;
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    long threads[kThreads + 1];
    for (int thread = 0; thread < kThreads; ++thread) threads[thread] = model::start(run, 0);
    threads[kThreads] = model::start(stop, 0);
    for (const long thread : threads) model::join(thread);
    ALWAYS(!asleep);
    return 0;
}
