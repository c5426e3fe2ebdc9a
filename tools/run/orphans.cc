#include "orphans.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>

#include "util/text.h"

namespace ddprun {

std::set<pid_t> children_of(const std::string& process) {
    std::set<pid_t> found;
    std::error_code gone;  // the process may end meanwhile
    for (std::filesystem::directory_iterator thread("/proc/" + process + "/task", gone), end;
         thread != end; thread.increment(gone)) {
        libddp::FileIn list(thread->path() / "children");
        for (pid_t pid = 0; list >> pid;) found.insert(pid);
    }
    return found;
}

Orphans::Orphans() : excluded_(children_of("self")) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::set<pid_t> Orphans::adopted() const {
    std::set<pid_t> found = children_of("self");
    for (const pid_t pid : excluded_) found.erase(pid);
    return found;
}

void Orphans::reap() const {
    for (const pid_t pid : adopted()) waitpid(pid, nullptr, WNOHANG);
}

bool Orphans::end() const {
    bool none_left = true;
    for (const pid_t pid : adopted()) {
        kill(pid, SIGKILL);
        if (waitpid(pid, nullptr, WNOHANG) == 0) none_left = false;
    }
    return none_left;
}

}  // namespace ddprun
