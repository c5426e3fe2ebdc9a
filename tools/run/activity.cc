#include "activity.h"

#include <fstream>
#include <sstream>
#include <string>

namespace ddprun {
namespace {

// Often enough for what waits on it, and seldom enough for thousands of ranks.
constexpr Milliseconds kBetweenLooks{250};
// In ticks of /proc, 10 ms each: threads that only wake up now and then stay below for seconds.
constexpr std::int64_t kLeastTicks = 5;

// CPU time of all threads of a process, in ticks; -1 if there is no such process.
std::int64_t cpu_ticks(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return -1;
    // The second field is the name in parentheses, which may hold anything; utime and stime are the 14th and 15th.
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    std::int64_t user = 0;
    std::int64_t system = 0;
    fields >> user >> system;
    return fields ? user + system : -1;
}

}  // namespace

void Activity::look(pid_t pid, Clock::time_point now) {
    if (now - looked_ < kBetweenLooks) return;
    looked_ = now;
    const std::int64_t ticks = cpu_ticks(pid);
    if (cpu_ticks_ >= 0 && ticks - cpu_ticks_ < kLeastTicks) return;
    cpu_ticks_ = ticks;
    last_ = now;
}

}  // namespace ddprun
