#include "comm/executor.h"

#include <utility>

#include "util/interrupt.h"
#include "util/quiet_thread.h"

namespace libddp {

std::shared_ptr<Executor> Executor::start(Runner runner, bool answers, OnInterrupt on_interrupt) {
    std::shared_ptr<Executor> executor(new Executor(runner, answers, std::move(on_interrupt)));
    if (runner != Runner::kWaitingThread)
        executor->thread_ = quiet_thread([raw = executor.get()] { raw->progress_loop(); });
    return executor;
}

WorkPtr Executor::submit(OperationPtr operation, const WaitTarget& target) {
    auto work = std::make_shared<Work>(shared_from_this());
    work->set_target(target);
    Task task{std::move(operation), work};
    if (runner_ == Runner::kAnyone) {
        Lock lock(mutex_);
        if (!anything_before()) {
            if (run_task(lock, task, /*only_if_ready=*/true)) return work;
            if (poison_.ok()) {
                queue_.push_front(std::move(task));  // others may have queued theirs meanwhile
                changed_.notify_all();
                return work;
            }
        }
    }
    if (auto refused = enqueue(std::move(task)); !refused.ok()) work->complete(refused);
    return work;
}

WorkPtr Executor::add_gate(WorkPtr work) {
    if (!work) work = std::make_shared<Work>(shared_from_this());
    work->close_gate();
    if (auto refused = enqueue({nullptr, work}); !refused.ok()) {
        work->open_gate();
        work->complete(refused);
    }
    return work;
}

WorkPtr Executor::gate_in_front() {
    Lock lock(mutex_);
    return queue_.empty() || queue_.front().operation ? nullptr : queue_.front().work;
}

// Puts a task into the queue: at its end, or in front for the continuation that is running. Returns
// why not.
ErrorInfo Executor::enqueue(Task task) {
    Lock lock(mutex_);
    if (!poison_.ok()) return poison_;
    auto at = queue_.end();
    if (holds_turn()) at = queue_.begin() + static_cast<std::ptrdiff_t>(front_position_++);
    queue_.insert(at, std::move(task));
    changed_.notify_all();
    return {};
}

bool Executor::anything_before() const {
    return !poison_.ok() || turn_taken_ || !queue_.empty() || !callbacks_.empty();
}

std::optional<ErrorInfo> Executor::run_now(Operation& operation) {
    if (runner_ == Runner::kProgressThread || !may_lend()) return std::nullopt;
    Lock lock(mutex_);
    if (anything_before() || callbacks_.siblings()) return std::nullopt;
    const Turn turn(*this, turn_taken_);
    operating_ = true;
    lock.unlock();
    auto result = operation.run();
    operating_ = false;
    lock.lock();
    wake_others();
    return result;
}

bool Executor::help_until(Work& work, const std::optional<Deadline>& deadline, bool lend) {
    // An operation may take as long as the group's timeout, so only a waiter without a deadline of
    // its own lends itself to one; and one without whom nobody would run what it waits for: because
    // it holds the turn, or by the backend.
    const bool operations =
        holds_turn() || (lend && may_lend() && (!deadline || runner_ == Runner::kWaitingThread));
    Lock lock(mutex_);
    // A thread that holds the turn is the only one that can run what it waits for.
    if (const auto siblings = callbacks_.siblings(); siblings && !holds_turn()) {
        lock.unlock();
        return siblings->wait(work, deadline, lend);
    }
    std::optional<ErrorInfo> verdict;
    bool soon = true;
    while (!work.done()) {
        if (deadline && deadline->expired() && !verdict) return false;
        if (step(lock, /*user_thread=*/true, operations)) {
            soon = true;  // a continuation may have begun something in another group
            continue;
        }
        ++helpers_;
        changed_.wait_until(lock, next_glance(deadline, soon));
        --helpers_;
        lock.unlock();
        soon = work.help(lend);
        work.end_if_wanted(verdict);
        lock.lock();
    }
    // Only now, when the operation uses nobody's memory any more.
    if (verdict) throw Error(*verdict);
    return true;
}

bool Executor::run_callbacks() {
    if (callback_count_.load(std::memory_order_relaxed) == 0) return false;
    bool ran = false;
    Lock lock(mutex_);
    while (!callbacks_.empty() && !turn_taken_) {
        run_callback(lock, callbacks_.pop());
        ran = true;
    }
    return ran;
}

void Executor::advance(Work& work, bool lend) {
    Lock lock(mutex_);
    if (const auto siblings = callbacks_.siblings()) {
        lock.unlock();
        siblings->run_callbacks();
    } else if (runner_ == Runner::kWaitingThread && lend) {
        while (!work.done() && step(lock, /*user_thread=*/true, /*operations=*/true)) {
        }
    } else {
        lock.unlock();
        run_callbacks();
    }
}

void Executor::join(std::shared_ptr<SiblingExecutors> siblings) {
    Lock lock(mutex_);
    callbacks_.count_with(std::move(siblings));
}

void Executor::leave(const std::shared_ptr<SiblingExecutors>& siblings) {
    Lock lock(mutex_);
    if (callbacks_.siblings() == siblings) callbacks_.count_with(nullptr);
}

bool Executor::idle() {
    Lock lock(mutex_);
    return queue_.empty() && callbacks_.empty() && (!operating_ || holds_turn());
}

ErrorInfo Executor::interrupted(const WaitTarget& waited_for) {
    return on_interrupt_ ? on_interrupt_(waited_for)
                         : ErrorInfo{DDP_ERROR_INTERRUPTED,
                                     str("a wait for ", describe(waited_for), " was interrupted")};
}

// A thread whose waits the program may end does not enter an operation that would not ask.
bool Executor::may_lend() const {
    return answers_ || runner_ == Runner::kWaitingThread || !interrupt::possible();
}

ErrorInfo Executor::refusal() {
    Lock lock(mutex_);
    return poison_;
}

void Executor::refuse(const ErrorInfo& reason) {
    Lock lock(mutex_);
    if (poison_.ok()) poison_ = reason;
}

void Executor::poison(const ErrorInfo& reason) {
    refuse(reason);
    std::deque<Task> tasks;
    std::deque<Continuation> callbacks;
    {
        Lock lock(mutex_);
        tasks.swap(queue_);
        callbacks = callbacks_.take_all();
        front_position_ = 0;
    }
    for (auto& task : tasks) {
        if (!task.operation) task.work->open_gate();
        task.work->complete(reason);
    }
    for (auto& callback : callbacks) Work::pass_on(std::move(callback), reason);
    notify();
}

void Executor::stop(const ErrorInfo& reason) {
    poison(reason);
    {
        Lock lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
        // A thread of the program that has lent itself may be inside an operation, which uses what
        // its group owns.
        changed_.wait(lock, [&] { return !operating_ || holds_turn(); });
    }
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();  // the group's last owner was a continuation on this very thread
    else if (thread_.joinable())
        thread_.join();
}

void Executor::progress_loop() {
    auto self = shared_from_this();
    Lock lock(mutex_);
    while (!stopping_)
        if (!step(lock, /*user_thread=*/false, /*operations=*/true)) changed_.wait(lock);
}

// Takes the turn and runs one thing. False if there is nothing this thread may run now.
bool Executor::step(Lock& lock, bool user_thread, bool operations) {
    if (turn_taken_ && !holds_turn()) return false;
    if (!callbacks_.empty()) {
        if (!user_thread) return false;
        run_callback(lock, callbacks_.pop());
        return true;
    }
    if (queue_.empty()) return false;
    const bool is_gate = !queue_.front().operation;
    if (is_gate && !queue_.front().work->done()) return false;
    if (!is_gate && (!operations || (user_thread && runner_ == Runner::kProgressThread)))
        return false;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    if (front_position_ > 0) --front_position_;
    return run_task(lock, task);
}

// Takes the turn for a task. False, with the task as it was: it is not ready.
bool Executor::run_task(Lock& lock, Task& task, bool only_if_ready) {
    const Turn turn(*this, turn_taken_);
    operating_ = static_cast<bool>(task.operation);
    bool ready = true;
    {
        const Unlocked meanwhile(lock, mutex_);
        if (task.operation) {
            ErrorInfo result;
            try {
                ready = !only_if_ready || task.operation->ready();
                if (ready) result = task.operation->run();
            } catch (...) {
                result = caught();
            }
            // Before anybody learns that the work is done: who then frees the group must not seem
            // to interrupt it.
            if (ready) task.operation = nullptr;
            operating_ = false;
            if (ready) task.work->complete(std::move(result));
        } else {
            task.work->open_gate();
        }
        if (ready) task.work.reset();
    }
    if (!ready) {
        if (stopping_) changed_.notify_all();
        return false;
    }
    wake_others();
    // they can run when the turn is given back, under this lock
    if (!callbacks_.empty()) callbacks_.ring();
    return true;
}

void Executor::run_callback(Lock& lock, Continuation continuation) {
    const Turn turn(*this, turn_taken_);
    {
        const Unlocked meanwhile(lock, mutex_);
        Work::run(std::move(continuation));
    }
    wake_others();
    if (!callbacks_.empty()) callbacks_.ring();
}

void Executor::add_callback(Continuation continuation) {
    ErrorInfo refused;
    {
        Lock lock(mutex_);
        if (poison_.ok()) {
            callbacks_.push(std::move(continuation));
            changed_.notify_all();
            if (!turn_taken_) callbacks_.ring();
            return;
        }
        refused = poison_;
    }
    Work::pass_on(std::move(continuation), refused);
}

void Executor::notify() {
    Lock lock(mutex_);
    wake_others();
    callbacks_.ring();
}

// The progress thread sleeps as long as the queue is empty; waking it for nothing would cost more
// than what has run.
void Executor::wake_others() {
    if (helpers_ > 0 || !queue_.empty() || stopping_) changed_.notify_all();
}

void WaitingCallbacks::push(Continuation continuation) {
    waiting_.push_back(std::move(continuation));
    add(1);
}

Continuation WaitingCallbacks::pop() {
    auto continuation = std::move(waiting_.front());
    waiting_.pop_front();
    add(-1);
    return continuation;
}

std::deque<Continuation> WaitingCallbacks::take_all() {
    add(-static_cast<std::int64_t>(waiting_.size()));
    return std::exchange(waiting_, {});
}

void WaitingCallbacks::count_with(std::shared_ptr<SiblingExecutors> siblings) {
    const auto waiting = static_cast<std::int64_t>(waiting_.size());
    add(-waiting);
    siblings_ = std::move(siblings);
    add(waiting);
}

void WaitingCallbacks::add(std::int64_t change) {
    count_.fetch_add(change, std::memory_order_relaxed);
    if (siblings_) siblings_->count_callbacks(change);
}

void WaitingCallbacks::ring() const {
    if (siblings_) siblings_->ring();
}

bool SiblingExecutors::wait(Work& work, const std::optional<Deadline>& deadline, bool lend) {
    std::optional<ErrorInfo> verdict;
    bool soon = true;
    for (;;) {
        Lock lock(mutex_);
        const std::uint64_t seen = rings_;
        lock.unlock();
        if (work.done()) {
            if (verdict) throw Error(*verdict);
            return true;
        }
        if (deadline && deadline->expired() && !verdict) return false;
        if (run_callbacks()) {
            soon = true;
            continue;
        }
        lock.lock();
        rung_.wait_until(lock, next_glance(deadline, soon),
                         [&]() DDP_REQUIRES(mutex_) { return rings_ != seen; });
        lock.unlock();
        soon = work.help(lend);
        work.end_if_wanted(verdict);
    }
}

bool SiblingExecutors::run_callbacks() {
    bool ran = false;
    for (const auto& member : members_)
        if (auto executor = member.lock()) ran = executor->run_callbacks() || ran;
    return ran;
}

void SiblingExecutors::ring() {
    const Lock lock(mutex_);
    ++rings_;
    rung_.notify_all();
}

}  // namespace libddp
