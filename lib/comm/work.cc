#include "comm/work.h"

#include <algorithm>

#include "util/interrupt.h"

namespace libddp {
namespace {

// The queue whose turn this thread holds. Nested waits, and submissions inside a continuation, need
// to know.
thread_local Queue* turn_holder = nullptr;

// How long an interrupted wait gives the device to let go of the memory.
constexpr std::int64_t kLetGoMs = 400;

// The memory that a work of the program's own uses until the program finishes it, whatever becomes
// of the group meanwhile.
struct Borrowed {
    explicit Borrowed(const OpMemory& lent) : memory(lent.used), borrowers(lent.borrowers) {
        ++*borrowers;
    }
    ~Borrowed() {
        memory = nullptr;
        --*borrowers;
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;

    std::shared_ptr<const void> memory;
    const std::shared_ptr<std::atomic<std::int32_t>> borrowers;
};

}  // namespace

std::shared_ptr<Queue> Queue::in_order(const OpTag& tag) {
    return turn_holder ? turn_holder->shared_from_this() : tag.order.queue;
}

Queue::Turn::Turn(Queue& queue, bool& taken)
    : taken_(taken), outer_taken_(taken), outer_holder_(turn_holder) {
    taken_ = true;
    turn_holder = &queue;
}

Queue::Turn::~Turn() {
    taken_ = outer_taken_;
    turn_holder = outer_holder_;
}

bool Queue::holds_turn() const {
    return turn_holder == this;
}

WorkPtr Work::user_completed(std::int64_t timeout_ms) {
    auto work = std::make_shared<Work>(nullptr);
    work->user_completed_ = true;
    const Lock lock(work->mutex_);
    work->expiry_ = Expiry{Deadline::after_ms(timeout_ms), timeout_ms};
    return work;
}

Work::~Work() {
    if (done() || !expiry_) return;
    for (const auto& continuation : continuations_) {
        const Lock lock(continuation.out->mutex_);
        continuation.out->expiry_ = expiry_;
    }
}

bool Work::complete(ErrorInfo result) {
    std::vector<Continuation> continuations;
    {
        const Lock lock(mutex_);
        if (done()) return false;
        result_ = std::move(result);
        finished_at_ = Deadline::Clock::now();
        if (!gated_) continuations.swap(continuations_);
        done_.store(true, std::memory_order_release);
        finished_.notify_all();
    }
    for (auto& continuation : continuations) start(std::move(continuation));
    if (queue_) queue_->notify();
    return true;
}

void Work::close_gate() {
    const Lock lock(mutex_);
    gated_ = true;
}

// The queue has come to the gate: what follows this work keeps its place in the sequence of
// operations.
void Work::open_gate() {
    std::vector<Continuation> continuations;
    {
        const Lock lock(mutex_);
        gated_ = false;
        if (done()) continuations.swap(continuations_);
    }
    for (auto& continuation : continuations) start(std::move(continuation));
}

void Work::poll() {
    if (queue_) queue_->advance(*this, /*lend=*/true);
    help(/*lend=*/true);
}

Deadline::Clock::time_point next_glance(const std::optional<Deadline>& deadline, bool soon) {
    const auto often = interrupt::possible() ? interrupt::kSlice : kGlance;
    const auto glance = Deadline::Clock::now() + (soon ? kGlanceSoon : often);
    return deadline ? std::min(deadline->at(), glance) : glance;
}

bool Work::wait(const std::optional<Deadline>& deadline, bool lend) {
    if (done()) return true;
    interrupt::refuse_inside_check();
    if (queue_) return queue_->help_until(*this, deadline, lend);
    // Nobody wakes us when a deadline passes, our own or that of a work this one waits for.
    bool soon = true;
    while (!done()) {
        if (deadline && deadline->expired()) return false;
        Lock lock(mutex_);
        auto glance = next_glance(deadline, soon);
        if (expiry_) glance = std::min(glance, expiry_->deadline.at());
        finished_.wait_until(lock, glance, [this] { return done(); });
        lock.unlock();
        soon = help(lend);
        if (interrupt::wanted()) interrupted();
    }
    return true;
}

WorkPtr Work::then(ContinuationFn fn, bool any_thread, OpTag tag) {
    auto queue = queue_ ? queue_ : Queue::in_order(tag);
    if (!queue_ && queue && !done()) {
        // The program finishes this work whenever it likes, on each rank at another time. Its
        // continuations may start collectives, so it gets its place in the queue now.
        auto gate = queue->add_gate();
        gate->follow(*this, tag);
        return gate->then(std::move(fn), any_thread, std::move(tag));
    }
    auto out = std::make_shared<Work>(queue);
    out->enqueued_on(stream_ ? stream_ : tag.order.stream, settle_ms_);
    out->set_target(target_);
    if (!tag.order.queue) tag.order.queue = queue;
    Continuation continuation{std::move(fn), out, std::move(tag), any_thread};
    if (attach(continuation)) return out;
    // Already done. The caller's thread is inside a libddp call, so any continuation may run here.
    continuation.any_thread = true;
    start(std::move(continuation));
    return out;
}

// Takes over the result of `other`, for which the tag was given, when that is done. called: what
// returned `other`.
void Work::follow(Work& other, OpTag tag, ContinuationFn called) {
    const bool lent = !other.queue_ && tag.memory.borrowers && !other.done();
    Continuation pass{nullptr, shared_from_this(), {}, true, std::move(called)};
    if (lent) pass.tag.memory.used = std::make_shared<Borrowed>(tag.memory);
    tag = {};
    if (!other.attach(pass)) other.start(std::move(pass));
}

// Registers a continuation; false if the work is done and it must be started instead.
bool Work::attach(Continuation& continuation) {
    {
        const Lock lock(continuation.out->mutex_);
        continuation.out->next_ = weak_from_this();
    }
    const Lock lock(mutex_);
    if (done() && !gated_) return false;
    continuations_.push_back(std::move(continuation));
    return true;
}

// On the thread that finished this work, or that came after.
void Work::start(Continuation continuation) {
    if (!result_.ok() || !continuation.fn) pass_on(std::move(continuation), result_);
    // without a queue: ddp_work_complete, a libddp call too
    else if (continuation.any_thread || !queue_)
        run(std::move(continuation));
    else
        queue_->add_callback(std::move(continuation));
}

void Work::run(Continuation continuation) {
    WorkPtr next;
    try {
        next = continuation.fn(continuation.tag);
    } catch (...) {
        return pass_on(std::move(continuation), caught());
    }
    if (!next) return pass_on(std::move(continuation), {});
    auto out = continuation.out;
    // A work that the program finishes at its own time: nothing may overtake what follows `out`.
    if (!next->queue_ && out->queue_ && !next->done()) out->queue_->add_gate(out);
    out->follow(*next, std::move(continuation.tag), std::move(continuation.fn));
}

// Releases the user's data, and the memory that the tag keeps, before the result is visible: who
// sees it uses them again.
void Work::pass_on(Continuation continuation, const ErrorInfo& result) {
    continuation.fn = nullptr;
    continuation.called = nullptr;
    continuation.tag = {};
    continuation.out->complete(result);
}

void Work::enqueued_on(StreamPtr stream, std::int64_t timeout_ms) {
    stream_ = std::move(stream);
    settle_ms_ = timeout_ms;
}

// The event that follows this work on its stream.
EventPtr Work::settling() {
    const Lock lock(mutex_);
    if (!settled_) settled_ = stream_->record();
    return settled_;
}

// An aborted operation ends as well, so the group is asked after the event.
bool Work::settled() {
    if (!stream_) return true;
    const bool done = settling()->done();
    check_queue();
    return done;
}

bool Work::settle(const std::optional<Deadline>& deadline) {
    if (settled()) return true;
    const bool done =
        wait_for(*settling(), deadline ? *deadline : Deadline::after_ms(settle_ms_), [this] {
            check_queue();
            if (interrupt::wanted()) interrupted();
        });
    check_queue();
    if (!done && !deadline)
        throw Error({DDP_ERROR_TIMEOUT,
                     str(device_name(stream_->device()),
                         ": the device did not finish an operation within ", settle_ms_, " ms"),
                     -1, -1, target_.bucket, target_.step});
    return done;
}

void Work::check_queue() const {
    if (!queue_) return;
    if (const ErrorInfo refused = queue_->refusal(); !refused.ok()) throw Error(refused);
}

void Work::interrupted() {
    if (!queue_)
        fail(DDP_ERROR_INTERRUPTED,
             "a wait for a work that the program completes (ddp_work_create) was interrupted");
    const ErrorInfo verdict = queue_->interrupted(target_);
    try {
        // An aborted operation ends soon, and uses the caller's memory until then.
        if (stream_) wait_for(*settling(), Deadline::after_ms(kLetGoMs), [] {});
    } catch (const Error&) {
        // A device that has failed uses no memory.
    }
    throw Error(verdict);
}

void Work::expire_if_due() {
    if (done()) return;
    std::optional<Expiry> expiry;
    WorkPtr next;
    {
        const Lock lock(mutex_);
        expiry = expiry_;
        next = next_.lock();
    }
    if (expiry && expiry->deadline.expired())
        complete({DDP_ERROR_TIMEOUT, str("a work made by ddp_work_create was not completed within ",
                                         expiry->timeout_ms, " ms")});
    else if (next)
        next->expire_if_due();
}

// Helps the works that this one waits for, and those that hold up a queue in front of one of them:
// notices deadlines that have passed, and runs continuations that wait for such a thread, and
// operations if `lend` and nobody else runs them. True if the queue of another group is among them.
bool Work::help(bool lend) {
    std::vector<const Queue*> helped;
    help(lend, helped);
    return std::any_of(helped.begin(), helped.end(),
                       [this](const Queue* other) { return other != queue_.get(); });
}

void Work::help(bool lend, std::vector<const Queue*>& helped) {
    expire_if_due();
    for (WorkPtr work = shared_from_this(); work && !work->done(); work = work->waits_for()) {
        const auto& queue = work->queue_;
        if (!queue || std::find(helped.begin(), helped.end(), queue.get()) != helped.end())
            continue;
        helped.push_back(queue.get());
        queue->advance(*work, lend);
        if (const WorkPtr gate = queue->gate_in_front()) gate->help(lend, helped);
    }
}

WorkPtr Work::waits_for() {
    const Lock lock(mutex_);
    return next_.lock();
}

// Asks until there is a verdict. A continuation may have begun, or begin meanwhile, an operation of
// another group, which must let go of its memory as well: that group breaks too.
void Work::end_if_wanted(std::optional<ErrorInfo>& verdict) {
    if (!verdict && interrupt::wanted()) verdict = queue_->interrupted(target_);
    if (!verdict) return;
    for (auto next = waits_for(); next && !next->done(); next = next->waits_for())
        if (next->queue_ && next->queue_->refusal().ok()) next->queue_->interrupted(next->target_);
}

}  // namespace libddp
