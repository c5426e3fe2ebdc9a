// A work is completed once. A thread that finds it done, without its lock, sees its result and what
// was written before. A continuation runs once: on the thread that completes the work, on the one
// that adds it afterwards, or where the queue comes to the work's gate.
//
// also kGate = 0 => kGate = 1
// weaken lib/comm/work.cc: done_.store(true, std::memory_order_release) => done_.store(true, std::memory_order_relaxed)
// weaken lib/comm/work.h: done_.load(std::memory_order_acquire) => done_.load(std::memory_order_relaxed)
// weaken lib/comm/work.cc: if (done()) return false; => nothing
// weaken lib/comm/work.cc: if (done() && !gated_) return false; => nothing
// weaken lib/comm/work.cc: { const Lock lock(mutex_); if (done()) return false; => { if (done()) return false;
#include <atomic>
#include <utility>

#include "checker.h"
#include "util/mutex.h"

namespace std {

// The elements of a vector, of which there is one here.
template <class T>
struct Few {
    T elements[1];
    int count = 0;

    void push_back(T&& element) { elements[count++] = element; }
    void swap(Few& other) {
        std::swap(count, other.count);
        elements[0] = other.elements[0];
    }
    T* begin() { return elements; }
    T* end() { return elements + count; }
};

}  // namespace std
#define vector Few

namespace libddp {
namespace {

constexpr int kGate = 0, kCompleters = 2;

int ran = 0, completed = 0, written[kCompleters];

class Work;
struct Continuation {
    Continuation(Work* follower = nullptr) : out(follower) {}
    Continuation(const Continuation& other) : out(other.out) {}
    void operator=(const Continuation& other) { out = other.out; }
    Work* out;
};
struct Deadline {
    struct Clock {
        static int now() { return 1; }
    };
};
struct Queue {
    void notify() {}
};
struct Condition {
    void notify_all() {}
};
using ErrorInfo = int;

class Work {
public:
    // from lib/comm/work.h: done
    // from lib/comm/work.h: result
    int finished_at() const { return finished_at_; }
    bool complete(ErrorInfo result);
    bool attach(Continuation& continuation);
    void start(Continuation) { ++ran; }
    void close_gate();
    void open_gate();

private:
    Work* weak_from_this() { return this; }

    Queue* const queue_ = nullptr;
    Mutex mutex_;
    Condition finished_;
    std::atomic<bool> done_{false};
    ErrorInfo result_ = 0;
    int finished_at_ = 0;
    std::Few<Continuation> continuations_;
    bool gated_ = false;
    Work* next_ = nullptr;
};

// from lib/comm/work.cc: Work::complete
// from lib/comm/work.cc: Work::attach
// from lib/comm/work.cc: Work::close_gate
// from lib/comm/work.cc: Work::open_gate

Work work, next;
Mutex counts;

void* complete(void* argument) {
    const int number = model::number_of(argument);
    written[number] = 1;
    if (!work.complete(1 + number)) return nullptr;
    const Lock lock(counts);
    ++completed;
    return nullptr;
}

void* add(void*) {
    Continuation continuation(&next);
    if (!work.attach(continuation)) work.start(std::move(continuation));
    return nullptr;
}

void* look(void*) {
    if (!work.done()) return nullptr;
    ALWAYS(work.finished_at() == 1);
    ALWAYS(written[work.result() - 1] == 1);
    return nullptr;
}

void* open(void*) {
    work.open_gate();
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    if (kGate) work.close_gate();
    long threads[kCompleters + 2];
    for (int thread = 0; thread < kCompleters; ++thread)
        threads[thread] = model::start(complete, static_cast<std::size_t>(thread));
    threads[kCompleters] = model::start(add, 0);
    threads[kCompleters + 1] = model::start(kGate ? open : look, 0);
    for (const long thread : threads) model::join(thread);
    ALWAYS(completed == 1);
    ALWAYS(ran == 1);
    return 0;
}
