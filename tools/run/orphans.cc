#include "orphans.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

namespace ddprun {
namespace {

// The children of all threads of this process. Empty where the kernel does not tell (CONFIG_PROC_CHILDREN).
std::set<pid_t> children() {
    std::set<pid_t> found;
    std::error_code ignored;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
        std::ifstream list(thread.path() / "children");
        for (pid_t pid = 0; list >> pid;) found.insert(pid);
    }
    return found;
}

}  // namespace

Orphans::Orphans() : excluded_(children()) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::set<pid_t> Orphans::adopted() const {
    std::set<pid_t> found = children();
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
