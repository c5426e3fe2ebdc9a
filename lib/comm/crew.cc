#include "comm/crew.h"

#include <algorithm>

#include "comm/executor.h"

namespace libddp {

bool Crew::wait(Work& work, const std::optional<Deadline>& deadline) {
    for (;;) {
        std::unique_lock lock(mutex_);
        const std::uint64_t seen = rings_;
        lock.unlock();
        if (work.done()) return true;
        if (deadline && deadline->expired()) return false;
        if (run_callbacks()) continue;
        const auto glance = Deadline::Clock::now() + kGlance;
        lock.lock();
        rung_.wait_until(lock, deadline ? std::min(deadline->at(), glance) : glance, [&] { return rings_ != seen; });
        lock.unlock();
        work.expire_if_due();
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
