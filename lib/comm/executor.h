// The queue of one group: runs operations one at a time in the order of submission, which is what
// keeps ranks in step.
//
// One thread at a time holds the turn: it runs an operation and then everything that continues it.
// The turn is taken by the executor's own progress thread or by a thread that waits for a work and
// lends itself (no hand-over, no idle core); which of the two may run operations depends on the
// backend. Operations submitted from inside a continuation go to the front of the queue: a chain
// such as allreduce, transform, allreduce runs to its end before the next bucket, at the same place
// of the sequence on every rank, whatever the timing. Where a chain waits for a work that the
// program finishes itself, a gate keeps its place. Continuations that may not run on the progress
// thread stop the queue until a thread inside a libddp call takes them.
//
// An operation on an idle queue may run on the very thread that submits it: when that would wait
// for it anyway, or when the operation says that nothing is in its way. Waking another thread takes
// longer than a small operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/work.h"
#include "util/mutex.h"

namespace libddp {

class Operation {
public:
    virtual ~Operation() = default;
    // Called at most once, before run(), on the thread that submits, when nothing is before it in
    // the queue. True: run it here and now. It may begin, and look for others for a moment.
    virtual bool ready() { return false; }
    virtual ErrorInfo run() = 0;
};
using OperationPtr = std::unique_ptr<Operation>;

class SiblingExecutors;

// Continuations that wait for a thread inside a libddp call. Under the lock of the executor.
class WaitingCallbacks {
public:
    // count: how many there are, for a look without the lock.
    explicit WaitingCallbacks(std::atomic<std::int64_t>& count) : count_(count) {}

    bool empty() const { return waiting_.empty(); }
    void push(Continuation continuation);
    Continuation pop();
    std::deque<Continuation> take_all();
    // Callbacks of siblings count together. Null: this executor has no siblings.
    void count_with(std::shared_ptr<SiblingExecutors> siblings);
    const std::shared_ptr<SiblingExecutors>& siblings() const { return siblings_; }
    // Threads that wait for a sibling should look again.
    void ring() const;

private:
    void add(std::int64_t change);

    std::deque<Continuation> waiting_;
    std::atomic<std::int64_t>& count_;
    std::shared_ptr<SiblingExecutors> siblings_;
};

class Executor final : public Queue {
public:
    // The threads that may run operations.
    enum class Runner {
        kAnyone,
        kProgressThread,
        kWaitingThread,  // only threads that wait inside a libddp call; there is no progress thread
    };

    // Called by a wait that the program ends: breaks the group, and returns the verdict.
    using OnInterrupt = std::function<ErrorInfo(const WaitTarget& waited_for)>;

    // answers: operations ask whether the program wants their wait to end, where they run on
    // threads of the program.
    static std::shared_ptr<Executor> start(Runner runner, bool answers = false,
                                           OnInterrupt on_interrupt = nullptr);

    // Queues an operation, or runs it here and now if nothing is before it and it is ready. The
    // result finishes when it has run.
    WorkPtr submit(OperationPtr operation, const WaitTarget& target = {});
    // Runs an operation here and now, for a caller that has nothing else to do. Nothing if others
    // are before it, or with siblings, where nobody who waits may be inside an operation that not
    // all ranks have come to: then submit it.
    std::optional<ErrorInfo> run_now(Operation& operation);

    WorkPtr add_gate(WorkPtr work = nullptr) override;
    WorkPtr gate_in_front() override;
    // If `lend`, the calling thread lends itself, unless this executor has siblings: without a
    // deadline always, with one only where nobody else runs operations (an operation then may
    // outlast the deadline).
    bool help_until(Work& work, const std::optional<Deadline>& deadline, bool lend) override;
    // Runs the callbacks of all siblings.
    void advance(Work& work, bool lend) override;
    void add_callback(Continuation continuation) override;
    void notify() override;
    ErrorInfo refusal() override;
    ErrorInfo interrupted(const WaitTarget& waited_for) override;

    // Runs continuations that wait for a thread inside a libddp call. False if there were none.
    // Cheap then.
    bool run_callbacks();
    // How many there are.
    const std::atomic<std::int64_t>& waiting_callbacks() const { return callback_count_; }

    // From now on threads that wait do what they can for all siblings, this executor among them.
    // They may not be the only ones that run operations.
    void join(std::shared_ptr<SiblingExecutors> siblings);
    // Until then. Nothing if it has others by now.
    void leave(const std::shared_ptr<SiblingExecutors>& siblings);

    Runner runner() const { return runner_; }

    // Whether the calling thread may be inside an operation that waits.
    bool may_lend() const;
    bool on_own_thread() const { return thread_.get_id() == std::this_thread::get_id(); }
    // True if no operation runs and nothing is queued. Continuations of an operation may still be
    // under way.
    bool idle();

    // From now on refusal() is `reason`. Queued operations stay.
    void refuse(const ErrorInfo& reason);
    // Fails everything that is queued, and continuations not yet begun, with `reason`; what is
    // submitted later too.
    void poison(const ErrorInfo& reason);

    // Ends the progress thread; queued operations fail. Called once, by the owner, not from inside
    // an operation. The destructor could not do it: the last owner may be a work that the progress
    // thread itself lets go of.
    void stop(const ErrorInfo& reason);

private:
    struct Task {
        OperationPtr operation;  // null: a gate, which lets the queue pass once `work` is done
        WorkPtr work;
    };

    Executor(Runner runner, bool answers, OnInterrupt on_interrupt)
        : runner_(runner), answers_(answers), on_interrupt_(std::move(on_interrupt)) {}

    void progress_loop();
    ErrorInfo enqueue(Task task);
    bool anything_before() const DDP_REQUIRES(mutex_);
    // These three let go of the lock meanwhile.
    bool step(Lock& lock, bool user_thread, bool operations) DDP_REQUIRES(mutex_);
    bool run_task(Lock& lock, Task& task, bool only_if_ready = false) DDP_REQUIRES(mutex_);
    void run_callback(Lock& lock, Continuation continuation) DDP_REQUIRES(mutex_);
    void wake_others() DDP_REQUIRES(mutex_);

    const Runner runner_;
    const bool answers_;
    const OnInterrupt on_interrupt_;
    Mutex mutex_;
    Condition changed_;
    std::deque<Task> queue_ DDP_GUARDED_BY(mutex_);
    // Relaxed: for a look without the lock. A thread that waits looks with it.
    std::atomic<std::int64_t> callback_count_{0};
    WaitingCallbacks callbacks_ DDP_GUARDED_BY(mutex_){callback_count_};
    bool turn_taken_ DDP_GUARDED_BY(mutex_) = false;
    int helpers_ DDP_GUARDED_BY(mutex_) = 0;  // threads that wait in help_until
    std::atomic<bool> operating_{false};  // the thread that holds the turn is inside an operation
    // where the running continuation's next operation goes
    std::size_t front_position_ DDP_GUARDED_BY(mutex_) = 0;
    bool stopping_ DDP_GUARDED_BY(mutex_) = false;
    ErrorInfo poison_ DDP_GUARDED_BY(mutex_);
    std::thread thread_;
};

// The executors of links that are one group: siblings. A thread that waits for a work of one runs
// the callbacks of all, and never lends itself to an operation: from inside one it could not, and
// two ranks, each inside an operation of another link, would wait for each other's callbacks.
// Operations run on the progress threads.
class SiblingExecutors {
public:
    using Members = std::vector<std::weak_ptr<Executor>>;

    explicit SiblingExecutors(Members members) : members_(std::move(members)) {}

    // Waits until `work` of a member is done; false if the deadline passed first. lend: to groups
    // that need it, where the work waits for them.
    bool wait(Work& work, const std::optional<Deadline>& deadline, bool lend);
    // Runs the continuations of all members that wait for a thread inside a libddp call. False if
    // there were none.
    bool run_callbacks();
    const std::atomic<std::int64_t>& waiting_callbacks() const { return waiting_callbacks_; }
    void count_callbacks(std::int64_t change) {
        waiting_callbacks_.fetch_add(change, std::memory_order_relaxed);
    }
    // A work is done, or a callback can run.
    void ring();

private:
    const Members members_;
    std::atomic<std::int64_t> waiting_callbacks_{0};
    Mutex mutex_;
    Condition rung_;
    std::uint64_t rings_ DDP_GUARDED_BY(mutex_) = 0;
};

}  // namespace libddp
