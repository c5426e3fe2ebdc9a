// Processes that ranks left behind. ddprun is their subreaper: they become its children, wherever
// they moved, so that it can find, end and reap them.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace ddprun {

// The children of all threads of a process: a pid or "self". Empty where the kernel does not tell
// (CONFIG_PROC_CHILDREN).
std::set<pid_t> children_of(const std::string& process);

class Orphans {
public:
    // Makes this process a subreaper. Its children of this moment are not ddprun's business.
    Orphans();

    // A process that ddprun started and will reap elsewhere.
    void exclude(pid_t pid) { excluded_.insert(pid); }
    void include(pid_t pid) { excluded_.erase(pid); }
    // Takes the exit status of those that have ended.
    void reap() const;
    // Kills those that are there. True when none is left.
    bool end() const;

private:
    std::set<pid_t> adopted() const;

    std::set<pid_t> excluded_;
};

}  // namespace ddprun
