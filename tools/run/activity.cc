#include "activity.h"

#include <cstdlib>
#include <string>

#include "orphans.h"
#include "util/text.h"

namespace ddprun {
namespace {

// Short enough for `Job`, which waits for two quiet seconds, and long enough for thousands of
// ranks.
constexpr Milliseconds kBetweenLooks{250};
// In ticks of /proc, 10 ms each: threads that only wake up now and then stay below for seconds.
constexpr std::int64_t kLeastTicks = 5;

// CPU time of all threads of a process, in ticks; 0 if there is no such process.
std::int64_t own_ticks(pid_t pid) {
    libddp::FileIn file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return 0;
    // The second field is the name in parentheses, which may hold anything; utime and stime are the
    // 14th and 15th.
    libddp::TextIn fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    std::int64_t user = 0;
    std::int64_t system = 0;
    fields >> user >> system;
    return fields ? user + system : 0;
}

// The same with the processes that descend from it.
std::int64_t cpu_ticks(pid_t pid) {
    std::int64_t ticks = own_ticks(pid);
    for (const pid_t child : children_of(std::to_string(pid))) ticks += cpu_ticks(child);
    return ticks;
}

}  // namespace

void Activity::look(pid_t pid, Clock::time_point now) {
    if (now - looked_ < kBetweenLooks) return;
    looked_ = now;
    const std::int64_t ticks = cpu_ticks(pid);
    // Fewer than before: one of them has ended.
    if (cpu_ticks_ && std::abs(ticks - *cpu_ticks_) < kLeastTicks) return;
    cpu_ticks_ = ticks;
    last_ = now;
}

}  // namespace ddprun
