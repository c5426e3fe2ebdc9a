#include "rendezvous/file_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "util/boot_clock.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often the file is looked at: often while a call waits and things move, seldom while nobody asks.
constexpr microseconds kFast{500};
constexpr microseconds kSlow{5000};
constexpr microseconds kIdle{20'000};
constexpr milliseconds kLivenessPeriod{40};
// Each participant looks after the next few that have something to bury, in a ring: the load stays the same for any
// number, and one that is stopped does not keep the others from noticing.
constexpr int kNeighbours = 8;
constexpr std::int64_t kMonitorBoundMs = 20;
constexpr std::int64_t kLeaveBoundMs = 500;
// The time that a waiting call may take beyond its timeout, for the file's lock.
constexpr std::int64_t kGraceMs = 1000;
// The server of a shared file system keeps the locks of a host that it does not hear for longer than this. A local one keeps them as
// long as the process lives.
constexpr std::int64_t kLocksStayMs = 10'000;

}  // namespace

FileStore::FileStore(const std::string& path, std::int64_t timeout_ms)
    : path_(path), call_timeout_ms_(timeout_ms), log_(path, Deadline::after_ms(timeout_ms)) {
    monitor_ = quiet_thread([this] { monitor(); });
}

FileStore::~FileStore() {
    close();
}

std::int64_t FileStore::alive_until_ms() const {
    return locked_ms_ + kLocksStayMs;
}

std::int64_t FileStore::raise_fence(std::int64_t at_least) {
    Lock lock(mutex_);
    check_usable();
    std::int64_t fence = 0;
    if (!with_file(lock, Deadline::after_ms(call_timeout_ms_), [&] { fence = log_.raise_fence(at_least); }))
        file_is_busy();
    return fence;
}

void FileStore::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (failure_) throw Error(*failure_);
}

void FileStore::file_is_busy() const {
    fail(DDP_ERROR_TIMEOUT, "the store file ", path_, " stayed locked by another process, which may have been stopped");
}

// Runs `use` with the file locked, and alone in this process. False: the deadline passed.
bool FileStore::with_file(Lock& lock, const Deadline& deadline, const std::function<void()>& use) {
    const bool closing = closed_;  // leave() comes here after closed_; everybody else must not
    static const std::atomic<bool> never{false};
    const auto waited = interrupt::wait(lock, changed_, deadline, [&] { return !busy_ || closed_ != closing; });
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for the store file ", path_, " was interrupted");
    if (waited == interrupt::Waited::kTimeout) return false;
    if (!closing) check_usable();
    busy_ = true;
    lock.unlock();
    bool locked = false;
    const std::int64_t asked_ms = boot_ms();
    try {
        locked = log_.lock(deadline, closing ? never : close_called_);
        if (locked) locked_ms_ = asked_ms;
        lock.lock();
        if (locked) use();
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        if (locked) log_.unlock();
        busy_ = false;
        changed_.notify_all();
        throw;
    }
    if (locked) log_.unlock();
    busy_ = false;
    changed_.notify_all();
    if (!locked && !closing) check_usable();
    return locked;
}

void FileStore::catch_up() {
    if (log_.replay(state_)) announce();
}

// Tells the waiting threads and the watches that the state has changed.
void FileStore::announce() {
    changed_.notify_all();
    for (auto at = watches_.begin(); at != watches_.end();) {
        Request get;
        get.op = Op::kGet;
        get.keys.push_back(at->second);
        auto outcome = state_.apply({}, get);
        if (outcome && outcome->code == DDP_OK) notifier_.fire(at->first, std::move(outcome->values.front()));
        at = outcome ? watches_.erase(at) : std::next(at);
    }
}

std::optional<Outcome> FileStore::apply(Caller caller, const Request& request) {
    auto outcome = state_.apply(caller, request);
    bool recorded = outcome ? outcome->code == DDP_OK : request.op == Op::kBarrier;
    if (recorded && changes_state(request.op)) {
        log_.append(caller, request, state_);
        announce();
    }
    return outcome;
}

std::optional<Outcome> FileStore::attempt(Lock& lock, Caller caller, const Request& request, const Deadline& deadline) {
    std::optional<Outcome> outcome;
    bool locked = with_file(lock, deadline, [&] {
        catch_up();
        outcome = apply(caller, request);
        // One that does not wait leaves no trace that others could see in between.
        if (!outcome && request.timeout_ms == kNoWait) outcome = time_over(caller, request);
    });
    if (!locked) file_is_busy();
    return outcome;
}

// Others must not count on an arrival at a barrier; nothing else that waits has left a trace.
Outcome FileStore::give_up(Lock& lock, Caller caller, const Request& request, const Deadline& deadline) {
    const interrupt::Off off;
    std::optional<Outcome> outcome;
    bool locked = with_file(lock, deadline, [&] {
        catch_up();
        outcome = time_over(caller, request);
    });
    if (!locked) file_is_busy();
    return std::move(*outcome);
}

void FileStore::give_up_interrupted(Lock& lock, Caller caller, const Request& request) {
    if (request.op == Op::kBarrier) give_up(lock, caller, request, Deadline::after_ms(kLeaveBoundMs));
    fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store ", path_, " was interrupted");
}

// With the file locked: a last look; for a barrier, the arrival is taken back.
Outcome FileStore::time_over(Caller caller, const Request& request) {
    if (request.op != Op::kBarrier) {
        auto outcome = apply(caller, request);
        return outcome ? std::move(*outcome) : state_.timed_out(request, request.timeout_ms);
    }
    if (!state_.waits_at(request.keys.front(), caller)) return Outcome();
    Outcome outcome = state_.timed_out(request, request.timeout_ms);
    Request cancel;
    cancel.op = Op::kCancel;
    cancel.number = static_cast<std::int64_t>(caller.request);
    apply(caller, cancel);
    return outcome;
}

bool FileStore::would_wait(Caller caller, const Request& request) const {
    if (request.op == Op::kBarrier) return state_.waits_at(request.keys.front(), caller);
    if (request.op == Op::kQueuePop) return state_.queue_empty(request.keys.front());
    return state_.first_missing(request.keys) != request.keys.size();
}

Outcome FileStore::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const auto deadline = Deadline::after_ms(request.timeout_ms);
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_;
    const auto bound = Deadline::after_ms(waits ? request.timeout_ms + kGraceMs : call_ms);

    Lock lock(mutex_);
    check_usable();
    const Caller caller{log_.owner(), next_request_++};
    if (auto outcome = attempt(lock, caller, request, bound)) return std::move(*outcome);

    struct Counted {
        std::size_t& count;
        explicit Counted(std::size_t& waiting) : count(waiting) { ++count; }
        ~Counted() { --count; }
    } counted(waiting_);
    monitor_wake_.notify_all();
    auto ready = [&] { return closed_ || failure_ || !would_wait(caller, request); };
    while (true) {
        const auto waited = interrupt::wait(lock, changed_, deadline, ready);
        if (waited == interrupt::Waited::kInterrupted) give_up_interrupted(lock, caller, request);
        if (waited == interrupt::Waited::kTimeout) return give_up(lock, caller, request, bound);
        check_usable();
        if (request.op == Op::kBarrier) return Outcome();
        // Another process may have popped the element meanwhile: then the wait goes on.
        if (auto outcome = attempt(lock, caller, request, bound)) return std::move(*outcome);
    }
}

Notifier::Id FileStore::watch(const std::string& key, Notifier::Callback seen) {
    Lock lock(mutex_);
    check_usable();
    Notifier::Id id = notifier_.add(std::move(seen));
    watches_.emplace(id, key);
    announce();
    return id;
}

Notifier::Id FileStore::watch_connection(Notifier::Callback lost) {
    Lock lock(mutex_);
    check_usable();
    return notifier_.add(std::move(lost));
}

void FileStore::unwatch(Notifier::Id id) {
    {
        Lock lock(mutex_);
        watches_.erase(id);
    }
    notifier_.remove(id);
}

void FileStore::monitor() {
    Lock lock(mutex_);
    auto next_look_for_dead = Deadline::Clock::now();
    microseconds pause = kIdle;
    while (!closed_) {
        bool asked = monitor_wake_.wait_for(lock, pause) == std::cv_status::no_timeout;
        if (closed_) return;
        try {
            bool news =
                !busy_ && log_.changed() && with_file(lock, Deadline::after_ms(kMonitorBoundMs), [&] { catch_up(); });
            if (waiting_ == 0)
                pause = kIdle;
            else
                pause = asked || news ? kFast : std::clamp(pause * 2, kFast, kSlow);
            if (Deadline::Clock::now() >= next_look_for_dead) {
                bury_the_dead(lock);
                next_look_for_dead = Deadline::Clock::now() + kLivenessPeriod;
            }
        } catch (const std::exception& error) {
            if (closed_) return;
            log(LogLevel::kError, error.what());
            failure_ = caught();
            changed_.notify_all();
            return;
        }
    }
}

void FileStore::bury_the_dead(Lock& lock) {
    auto owners = state_.owners();
    std::vector<std::uint64_t> ring(owners.upper_bound(log_.owner()), owners.end());
    ring.insert(ring.end(), owners.begin(), owners.lower_bound(log_.owner()));
    std::vector<std::uint64_t> dead;
    int alive = 0;
    for (std::uint64_t owner : ring) {
        if (!log_.alive(owner))
            dead.push_back(owner);
        else if (++alive == kNeighbours)
            break;
    }
    if (dead.empty()) return;
    with_file(lock, Deadline::after_ms(kMonitorBoundMs), [&] {
        catch_up();  // another participant may have been faster
        Request goodbye;
        goodbye.op = Op::kGoodbye;
        auto left = state_.owners();
        for (std::uint64_t owner : dead)
            if (left.count(owner) != 0) apply({owner, 0}, goodbye);
    });
}

void FileStore::close() {
    if (close_called_.exchange(true)) return;
    {
        Lock lock(mutex_);
        closed_ = true;
        changed_.notify_all();
        monitor_wake_.notify_all();
    }
    monitor_.join();
    {
        Lock lock(mutex_);
        leave(lock);
    }
    notifier_.stop();
}

// Runs this participant's own wills and takes back its arrivals; the last one deletes the file. If the lock cannot be
// had in time, the others find this participant gone and do the former; the file stays and is found stale later.
void FileStore::leave(Lock& lock) {
    const interrupt::Off off;
    try {
        with_file(lock, Deadline::after_ms(kLeaveBoundMs), [&] {
            catch_up();
            Request goodbye;
            goodbye.op = Op::kGoodbye;
            if (state_.owners().count(log_.owner()) != 0) apply({log_.owner(), 0}, goodbye);
            // Before the lock goes: whoever has it next must not take this participant for one that stays.
            log_.end_presence();
            if (!log_.others_alive()) log_.remove_file();
        });
    } catch (const Error& error) {
        log(LogLevel::kWarn, error.what());
    }
    if (!busy_) log_.leave();
}

}  // namespace libddp
