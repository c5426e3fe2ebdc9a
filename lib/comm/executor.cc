#include "comm/executor.h"

#include "util/interrupt.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// The executor whose turn this thread holds. Nested waits and submissions inside a continuation need to know.
thread_local Executor* turn_holder = nullptr;

// Marks the turn as this thread's while something runs without the lock; nested uses give it back to the outer one.
class Turn {
public:
    Turn(Executor* executor, bool& taken) : taken_(taken), outer_taken_(taken), outer_holder_(turn_holder) {
        taken_ = true;
        turn_holder = executor;
    }
    ~Turn() {
        taken_ = outer_taken_;
        turn_holder = outer_holder_;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    bool& taken_;
    const bool outer_taken_;
    Executor* const outer_holder_;
};

}  // namespace

std::shared_ptr<Executor> Executor::start(Runner runner, bool answers, OnInterrupt on_interrupt) {
    std::shared_ptr<Executor> executor(new Executor(runner, answers, std::move(on_interrupt)));
    if (runner != Runner::kWaitingThread)
        executor->thread_ = quiet_thread([raw = executor.get()] { raw->progress_loop(); });
    return executor;
}

// The last owner may be a work that the progress thread itself lets go of, so joining is stop()'s business.
Executor::~Executor() = default;

WorkPtr Executor::submit(OperationPtr operation, const WaitTarget& target) {
    auto work = std::make_shared<Work>(shared_from_this());
    work->set_target(target);
    Task task{std::move(operation), work};
    if (run_at_once(task)) return work;
    if (auto refused = enqueue(std::move(task)); !refused.ok()) work->complete(refused);
    return work;
}

WorkPtr Executor::add_gate(WorkPtr work) {
    if (!work) work = std::make_shared<Work>(shared_from_this());
    {
        std::lock_guard lock(work->mutex_);
        work->gated_ = true;
    }
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

std::shared_ptr<Executor> Executor::in_order(const OpTag& tag) {
    if (turn_holder) return turn_holder->shared_from_this();
    return tag.executor;
}

// Puts a task into the queue: at its end, or in front for the continuation that is running. Returns why not.
ErrorInfo Executor::enqueue(Task task) {
    Lock lock(mutex_);
    if (!poison_.ok()) return poison_;
    auto at = queue_.end();
    if (holds_turn()) at = queue_.begin() + static_cast<std::ptrdiff_t>(front_position_++);
    queue_.insert(at, std::move(task));
    changed_.notify_all();
    return {};
}

// Called with the lock held.
bool Executor::anything_before() const {
    return !poison_.ok() || turn_taken_ || !queue_.empty() || !callbacks_.empty();
}

// Takes the turn for a part of an operation, which runs without the lock.
template <class Function>
auto Executor::inside_operation(Lock& lock, Function function) {
    Turn turn(this, turn_taken_);
    operating_ = true;
    lock.unlock();
    auto result = function();
    operating_ = false;
    lock.lock();
    if (stopping_) changed_.notify_all();
    return result;
}

std::optional<ErrorInfo> Executor::run_now(Operation& operation) {
    if (runner_ == Runner::kProgressThread || !may_lend()) return std::nullopt;
    Lock lock(mutex_);
    if (anything_before() || siblings_) return std::nullopt;
    auto result = inside_operation(lock, [&] { return operation.run(); });
    wake_others();
    return result;
}

// False: the task must be queued. If the operation turns out not to be ready, it is, at its place.
bool Executor::run_at_once(Task& task) {
    if (runner_ != Runner::kAnyone) return false;
    Lock lock(mutex_);
    if (anything_before()) return false;
    const bool ready = inside_operation(lock, [&] { return task.operation->ready(); });
    if (!poison_.ok()) return false;
    if (!ready) queue_.push_front(std::move(task));  // others may have queued theirs meanwhile
    if (task.operation)
        run_task(lock, std::move(task));
    else
        changed_.notify_all();
    return true;
}

bool Executor::help_until(Work& work, const std::optional<Deadline>& deadline, bool lend) {
    // An operation may take as long as the group's timeout, so only a waiter without a deadline of its own lends itself
    // to one; and one without whom nobody would run what it waits for: because it holds the turn, or by the backend.
    const bool operations = holds_turn() || (lend && may_lend() && (!deadline || runner_ == Runner::kWaitingThread));
    Lock lock(mutex_);
    // A thread that holds the turn is the only one that can run what it waits for.
    if (const auto siblings = siblings_; siblings && !holds_turn()) {
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
        auto continuation = std::move(callbacks_.front());
        callbacks_.pop_front();
        run_callback(lock, std::move(continuation));
        ran = true;
    }
    return ran;
}

void Executor::advance(Work& work, bool lend) {
    Lock lock(mutex_);
    if (const auto siblings = siblings_) {
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
    set_siblings(std::move(siblings));
}

void Executor::leave(const std::shared_ptr<SiblingExecutors>& siblings) {
    Lock lock(mutex_);
    if (siblings_ == siblings) set_siblings(nullptr);
}

// Called with the lock held, as is all that counts callbacks.
void Executor::set_siblings(std::shared_ptr<SiblingExecutors> siblings) {
    const auto waiting = static_cast<std::int64_t>(callbacks_.size());
    count_callbacks(-waiting);
    siblings_ = std::move(siblings);
    count_callbacks(waiting);
}

void Executor::count_callbacks(std::int64_t change) {
    callback_count_.fetch_add(change, std::memory_order_relaxed);
    if (siblings_) siblings_->count_callbacks(change);
}

bool Executor::idle() {
    Lock lock(mutex_);
    return queue_.empty() && callbacks_.empty() && (!operating_ || holds_turn());
}

ErrorInfo Executor::interrupted(const WaitTarget& waited_for) {
    return on_interrupt_
               ? on_interrupt_(waited_for)
               : ErrorInfo{DDP_ERROR_INTERRUPTED, str("a wait for ", describe(waited_for), " was interrupted")};
}

// A thread whose waits the program may end does not enter an operation that would not ask.
bool Executor::may_lend() const {
    return answers_ || runner_ == Runner::kWaitingThread || !interrupt::possible();
}

void Executor::check() {
    Lock lock(mutex_);
    if (!poison_.ok()) throw Error(poison_);
}

bool Executor::poisoned() {
    Lock lock(mutex_);
    return !poison_.ok();
}

void Executor::refuse(const ErrorInfo& reason) {
    Lock lock(mutex_);
    if (poison_.ok()) poison_ = reason;
}

void Executor::poison(const ErrorInfo& reason) {
    refuse(reason);
    std::deque<Task> tasks;
    std::deque<Work::Continuation> callbacks;
    {
        Lock lock(mutex_);
        tasks.swap(queue_);
        callbacks.swap(callbacks_);
        count_callbacks(-static_cast<std::int64_t>(callbacks.size()));
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
        // A thread of the program that has lent itself may be inside an operation, which uses what its group owns.
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

// Takes the turn and runs one thing. False if there is nothing this thread may run now. Called and returns with the
// lock held.
bool Executor::step(Lock& lock, bool user_thread, bool operations) {
    if (turn_taken_ && !holds_turn()) return false;
    if (!callbacks_.empty()) {
        if (!user_thread) return false;
        auto continuation = std::move(callbacks_.front());
        callbacks_.pop_front();
        run_callback(lock, std::move(continuation));
        return true;
    }
    if (queue_.empty()) return false;
    const bool is_gate = !queue_.front().operation;
    if (is_gate && !queue_.front().work->done()) return false;
    if (!is_gate && (!operations || (user_thread && runner_ == Runner::kProgressThread))) return false;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    if (front_position_ > 0) --front_position_;
    run_task(lock, std::move(task));
    return true;
}

void Executor::run_task(Lock& lock, Task task) {
    Turn turn(this, turn_taken_);
    operating_ = static_cast<bool>(task.operation);
    lock.unlock();
    if (task.operation) {
        ErrorInfo result;
        try {
            result = task.operation->run();
        } catch (...) {
            result = caught();
        }
        task.operation = nullptr;
        // Before anybody learns that the work is done: who then frees the group must not seem to interrupt it.
        operating_ = false;
        task.work->complete(std::move(result));
    } else {
        task.work->open_gate();
    }
    task.work.reset();
    lock.lock();
    wake_others();
    if (!callbacks_.empty()) ring();  // they can run when the turn is given back, under this lock
}

void Executor::run_callback(Lock& lock, Work::Continuation continuation) {
    count_callbacks(-1);
    Turn turn(this, turn_taken_);
    lock.unlock();
    Work::run(std::move(continuation));
    lock.lock();
    wake_others();
    if (!callbacks_.empty()) ring();
}

void Executor::add_callback(Work::Continuation continuation) {
    ErrorInfo refused;
    {
        Lock lock(mutex_);
        if (poison_.ok()) {
            callbacks_.push_back(std::move(continuation));
            count_callbacks(1);
            changed_.notify_all();
            if (!turn_taken_) ring();
            return;
        }
        refused = poison_;
    }
    Work::pass_on(std::move(continuation), refused);
}

void Executor::notify() {
    Lock lock(mutex_);
    wake_others();
    ring();
}

// The progress thread sleeps as long as the queue is empty; waking it for nothing would cost more than what has run.
void Executor::wake_others() {
    if (helpers_ > 0 || !queue_.empty() || stopping_) changed_.notify_all();
}

// Called with the lock held.
void Executor::ring() {
    if (siblings_) siblings_->ring();
}

bool Executor::holds_turn() const {
    return turn_holder == this;
}

bool SiblingExecutors::wait(Work& work, const std::optional<Deadline>& deadline, bool lend) {
    std::optional<ErrorInfo> verdict;
    bool soon = true;
    for (;;) {
        std::unique_lock lock(mutex_);
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
        rung_.wait_until(lock, next_glance(deadline, soon), [&] { return rings_ != seen; });
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
    std::lock_guard lock(mutex_);
    ++rings_;
    rung_.notify_all();
}

}  // namespace libddp
