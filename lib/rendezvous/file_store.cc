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

// How often the file is looked at: often while a call waits and things move, seldom while nobody
// asks.
constexpr microseconds kFast{500};
constexpr microseconds kSlow{5000};
constexpr microseconds kIdle{20'000};
constexpr milliseconds kLivenessPeriod{40};
// Each participant looks after the next few that have something to bury, in a ring: the load stays
// the same for any number, and one that is stopped does not keep the others from noticing.
constexpr int kNeighbours = 8;
constexpr std::int64_t kMonitorBoundMs = 20;
constexpr std::int64_t kLeaveBoundMs = 500;
// The time that a waiting call may take beyond its timeout, for the file's lock.
constexpr std::int64_t kGraceMs = 1000;
// The server of a shared file system keeps the locks of a host that it does not hear for longer
// than this. A local one keeps them as long as the process lives.
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
    if (!with_file(lock, Deadline::after_ms(call_timeout_ms_),
                   [&]() DDP_REQUIRES(mutex_) { fence = log_.raise_fence(at_least); }))
        file_is_busy();
    return fence;
}

void FileStore::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (failure_) throw Error(*failure_);
}

void FileStore::file_is_busy() const {
    fail(DDP_ERROR_TIMEOUT, "the store file ", path_,
         " stayed locked by another process, which may have been stopped");
}

// Runs `use` with the file locked, and alone in this process. False: the deadline passed.
bool FileStore::with_file(Lock& lock, const Deadline& deadline, const std::function<void()>& use) {
    const bool closing = closed_;  // leave() comes here after closed_; everybody else must not
    static const std::atomic<bool> never{false};
    const auto waited = interrupt::wait(lock, changed_, deadline, [&]() DDP_REQUIRES(mutex_) {
        return !busy_ || closed_ != closing;
    });
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for the store file ", path_, " was interrupted");
    if (waited == interrupt::Waited::kTimeout) return false;
    if (!closing) check_usable();
    busy_ = true;
    bool locked = false;
    // FileLog::lock() uses nothing that another thread may change.
    const auto lock_file = [&]() DDP_UNCHECKED_LOCKS {
        return log_.lock(deadline, closing ? never : closed_);
    };
    try {
        {
            const Unlocked meanwhile(lock, mutex_);
            const std::int64_t asked_ms = boot_ms();
            locked = lock_file();
            if (locked) locked_ms_ = asked_ms;
        }
        if (locked) use();
    } catch (...) {
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
    watches_.look(state_);
}

std::optional<Outcome> FileStore::apply(std::uint64_t owner, const Request& request) {
    auto outcome = state_.apply(owner, request);
    if (outcome && outcome->code == DDP_OK && changes_state(request.op)) {
        log_.append(owner, request, state_);
        announce();
    }
    return outcome;
}

// nullopt: it has to wait, and leaves no trace.
std::optional<Outcome> FileStore::attempt(Lock& lock, const Request& request,
                                          const Deadline& deadline) {
    std::optional<Outcome> outcome;
    const bool locked = with_file(lock, deadline, [&]() DDP_REQUIRES(mutex_) {
        catch_up();
        outcome = apply(log_.owner(), request);
    });
    if (!locked) file_is_busy();
    return outcome;
}

Outcome FileStore::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const auto deadline = Deadline::after_ms(request.timeout_ms);
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_;
    const auto bound = Deadline::after_ms(waits ? request.timeout_ms + kGraceMs : call_ms);

    Lock lock(mutex_);
    check_usable();
    struct Counted {
        std::size_t& count;
        explicit Counted(std::size_t& waiting) : count(waiting) { ++count; }
        ~Counted() { --count; }
    };
    std::optional<Counted> counted;
    for (bool last = !waits;;) {
        if (auto outcome = attempt(lock, request, bound)) return std::move(*outcome);
        if (last) return state_.timed_out(request, request.timeout_ms);
        if (!counted) {
            counted.emplace(waiting_);
            monitor_wake_.notify_all();
        }
        const auto waited = interrupt::wait(lock, changed_, deadline, [&]() DDP_REQUIRES(mutex_) {
            return closed_ || failure_ || state_.first_missing(request.keys) == request.keys.size();
        });
        if (waited == interrupt::Waited::kInterrupted)
            fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store ",
                 path_, " was interrupted");
        check_usable();
        last = waited == interrupt::Waited::kTimeout;
    }
}

Notifier::Id FileStore::watch(const std::string& key, Notifier::Callback seen) {
    const Lock lock(mutex_);
    check_usable();
    const Notifier::Id id = watches_.add(key, std::move(seen));
    announce();
    return id;
}

Notifier::Id FileStore::watch_connection(Notifier::Callback lost) {
    const Lock lock(mutex_);
    check_usable();
    return notifier_.add(std::move(lost));
}

void FileStore::unwatch(Notifier::Id id) {
    {
        const Lock lock(mutex_);
        watches_.forget(id);
    }
    notifier_.remove(id);
}

void FileStore::monitor() {
    Lock lock(mutex_);
    auto next_look_for_dead = Deadline::Clock::now();
    microseconds pause = kIdle;
    while (!closed_) {
        bool asked = monitor_wake_.wait_for(lock, pause);
        if (closed_) return;
        try {
            bool news = !busy_ && log_.changed() &&
                        with_file(lock, Deadline::after_ms(kMonitorBoundMs),
                                  [&]() DDP_REQUIRES(mutex_) { catch_up(); });
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
    with_file(lock, Deadline::after_ms(kMonitorBoundMs), [&]() DDP_REQUIRES(mutex_) {
        catch_up();  // another participant may have been faster
        auto left = state_.owners();
        for (std::uint64_t owner : dead)
            if (left.count(owner) != 0) apply(owner, Request{Op::kGoodbye});
    });
}

void FileStore::close() {
    {
        const Lock lock(mutex_);
        if (closed_.exchange(true)) return;
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

// Runs this participant's own wills; the last one deletes the file. If the lock cannot be had in
// time, the others find this participant gone and do the former; the file stays and is found stale
// later.
void FileStore::leave(Lock& lock) {
    const interrupt::Off off;
    try {
        with_file(lock, Deadline::after_ms(kLeaveBoundMs), [&]() DDP_REQUIRES(mutex_) {
            catch_up();
            if (state_.owners().count(log_.owner()) != 0)
                apply(log_.owner(), Request{Op::kGoodbye});
            // Before the lock goes: whoever has it next must not take this participant for one that
            // stays.
            log_.end_presence();
            if (!log_.others_alive()) log_.remove_file();
        });
    } catch (const Error& error) {
        log(LogLevel::kWarn, error.what());
    }
    if (!busy_) log_.leave();
}

}  // namespace libddp
