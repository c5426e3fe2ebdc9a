// Work: the handle of an asynchronous operation, and continuations on it. Semantics:
// include/ddp/group.h.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/signature.h"
#include "comm/tag.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/mutex.h"

namespace libddp {

class Work;
using WorkPtr = std::shared_ptr<Work>;

// How often a waiter looks up although nobody woke it: works that the user completes have deadlines
// that nobody else watches. Soon, where the work may wait for one of another group: that group
// wakes only its own waiters.
inline constexpr std::chrono::milliseconds kGlance{100}, kGlanceSoon{1};

// When a waiter with this deadline looks up next.
Deadline::Clock::time_point next_glance(const std::optional<Deadline>& deadline, bool soon);

// Runs after a work. tag: for the operations that it submits. Returns the work to wait for next,
// which may be null. Throws Error to fail.
using ContinuationFn = std::function<WorkPtr(const OpTag& tag)>;

struct Continuation {
    ContinuationFn fn;  // empty: pass the result on to `out`
    WorkPtr out;
    OpTag tag;
    bool any_thread;
    ContinuationFn called{};  // what has run: the work that it returned may use its data
};

// The queue in whose order works and their continuations run: an executor. A work knows no more of
// it than this.
class Queue : public std::enable_shared_from_this<Queue> {
public:
    virtual ~Queue() = default;

    // The queue whose order must be kept to by what continues operations with this tag: that of the
    // turn that the calling thread holds, or the tag's. May be null.
    static std::shared_ptr<Queue> in_order(const OpTag& tag);

    // Waits until `work` is done; false if the deadline passed first. lend: the calling thread may
    // run operations meanwhile. Throws the verdict if the program ends the wait.
    virtual bool help_until(Work& work, const std::optional<Deadline>& deadline, bool lend) = 0;
    // Runs callbacks that wait for a thread inside a libddp call. If `lend` and nobody else runs
    // operations, runs those too, until `work` is done or must wait for something else.
    virtual void advance(Work& work, bool lend) = 0;
    // Holds up the queue, from this place in it, until `work` (a new one if null) is done and what
    // continues it has run.
    virtual WorkPtr add_gate(WorkPtr work = nullptr) = 0;
    // The work of a gate at the head of the queue, or null. A work behind the gate does not lead to
    // that work.
    virtual WorkPtr gate_in_front() = 0;
    virtual void add_callback(Continuation continuation) = 0;
    // A work is done.
    virtual void notify() = 0;
    // Why it runs nothing more; code DDP_OK: it does.
    virtual ErrorInfo refusal() = 0;
    // The program ends a wait for an operation. Returns the verdict.
    virtual ErrorInfo interrupted(const WaitTarget& waited_for) = 0;

protected:
    // Marks the turn as this thread's while something runs without the lock. Nested uses give it
    // back to the outer one.
    class Turn {
    public:
        Turn(Queue& queue, bool& taken);
        ~Turn();
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        bool& taken_;
        const bool outer_taken_;
        Queue* const outer_holder_;
    };

    // The calling thread holds the turn.
    bool holds_turn() const;
};

class Work : public std::enable_shared_from_this<Work> {
public:
    // queue: whose operations a waiter should help with, and which wakes the waiters. Null for a
    // work that the user completes.
    explicit Work(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
    // Nobody can complete it any more: what follows it expires when it would have.
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    // A work that its user completes, and that fails with TIMEOUT when somebody waits for it, or
    // for what follows it, past the deadline.
    static WorkPtr user_completed(std::int64_t timeout_ms);
    bool is_user_completed() const { return user_completed_; }

    bool done() const { return done_.load(std::memory_order_acquire); }
    // How it went, and when. Only once done.
    const ErrorInfo& result() const { return result_; }
    Deadline::Clock::time_point finished_at() const { return finished_at_; }

    // Finishes the work and runs, or hands to the queue, its continuations. False if it was
    // finished already.
    bool complete(ErrorInfo result);

    // Runs what waits for a thread like the caller's, and notices a deadline that has passed. Does
    // not wait, unless operations have only such threads to run on.
    void poll();

    // Names the work, for messages. Before anybody else has the work.
    void set_target(const WaitTarget& target) { target_ = target; }

    // Waits, helping the queue (Queue::help_until). False if the deadline passed first. Throws
    // INTERRUPTED if the program wants that: the group is broken then, unless this is a work that
    // the user completes.
    bool wait(const std::optional<Deadline>& deadline, bool lend = true);

    // The operation is done when it is enqueued; its result is there when the stream comes to it.
    // timeout_ms: how long the host may wait for that. Called before anybody else has the work.
    void enqueued_on(StreamPtr stream, std::int64_t timeout_ms);
    // Whether the result is there, of a work that is done without error. Throws what has broken the
    // group meanwhile.
    bool settled();
    // Waits for that; false if the deadline passed first.
    bool settle(const std::optional<Deadline>& deadline);

    // See ddp_work_then. fn gets this tag, with this work's queue if it has none. The tag keeps its
    // memory until fn has run.
    WorkPtr then(ContinuationFn fn, bool any_thread, OpTag tag);

private:
    friend class Executor;
    friend class SiblingExecutors;

    struct Expiry {
        Deadline deadline;
        std::int64_t timeout_ms;
    };

    bool attach(Continuation& continuation);
    void follow(Work& other, OpTag tag, ContinuationFn called = nullptr);
    void start(Continuation continuation);
    static void run(Continuation continuation);
    static void pass_on(Continuation continuation, const ErrorInfo& result);
    void close_gate();
    void open_gate();
    void expire_if_due();
    bool help(bool lend);
    void help(bool lend, std::vector<const Queue*>& helped);
    WorkPtr waits_for();
    EventPtr settling();
    void end_if_wanted(std::optional<ErrorInfo>& verdict);
    void check_queue() const;
    [[noreturn]] void interrupted();

    const std::shared_ptr<Queue> queue_;
    bool user_completed_ = false;
    WaitTarget target_;
    Mutex mutex_;
    Condition finished_;
    std::atomic<bool> done_{false};
    ErrorInfo result_;  // this and the time: written once, before done_
    Deadline::Clock::time_point finished_at_;
    std::vector<Continuation> continuations_ DDP_GUARDED_BY(mutex_);
    // continuations wait until the queue comes to this work's gate
    bool gated_ DDP_GUARDED_BY(mutex_) = false;
    // what this one waits for, so that its deadline is seen
    std::weak_ptr<Work> next_ DDP_GUARDED_BY(mutex_);
    std::optional<Expiry> expiry_ DDP_GUARDED_BY(mutex_);
    StreamPtr stream_;  // null: nothing of it is on a device
    std::int64_t settle_ms_ = kDefaultTimeoutMs;
    EventPtr settled_ DDP_GUARDED_BY(mutex_);  // recorded when somebody first wants to know
};

}  // namespace libddp
