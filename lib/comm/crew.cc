#include "comm/crew.h"

#include <algorithm>

#include "comm/executor.h"

namespace libddp {

bool Crew::wait(Work& work, const std::optional<Deadline>& deadline) {
    std::optional<ErrorInfo> verdict;
    for (;;) {
        std::unique_lock lock(mutex_);
        const std::uint64_t seen = rings_;
        lock.unlock();
        if (work.done()) {
            if (verdict) throw Error(*verdict);
            return true;
        }
        if (deadline && deadline->expired() && !verdict) return false;
        if (run_callbacks()) continue;
        lock.lock();
        rung_.wait_until(lock, next_glance(deadline), [&] { return rings_ != seen; });
        lock.unlock();
        work.expire_if_due();
        work.end_if_wanted(verdict);
    }
}

bool Crew::run_callbacks() {
    bool ran = false;
    for (const auto& member : members_)
        if (auto executor = member.lock()) ran = executor->run_callbacks() || ran;
    return ran;
}

void Crew::ring() {
    std::lock_guard lock(mutex_);
    ++rings_;
    rung_.notify_all();
}

}  // namespace libddp
