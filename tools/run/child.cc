#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "elastic/keys.h"
#include "guard.h"

namespace ddprun {
namespace {

constexpr const char* kChildMode = "--child";
// argv: ddprun --child PARENT OPEN_FILES PROGRAM...
constexpr int kParent = 2;
constexpr int kOpenFiles = 3;
constexpr int kProgram = 4;

void limit_open_files(rlim_t count) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = count;
    setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::vector<std::string> child_arguments(const std::vector<std::string>& program,
                                         rlim_t open_files) {
    std::vector<std::string> arguments = {"ddprun", kChildMode, std::to_string(getpid()),
                                          std::to_string(open_files)};
    arguments.insert(arguments.end(), program.begin(), program.end());
    return arguments;
}

bool is_child_mode(int argc, char** argv) {
    return argc > kProgram && std::strcmp(argv[1], kChildMode) == 0;
}

int run_child(int, char** argv) {
    // SIGKILL, because a rank that ignores SIGTERM would outlive a launcher that can no longer
    // insist.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before prctl, and then no signal comes.
    if (std::to_string(getppid()) != argv[kParent]) return 126;
    if (fcntl(kReportDescriptor, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(kGuardDescriptor, F_SETFD, FD_CLOEXEC) != 0) {
        std::fputs("ddprun: --child is for ddprun's own use\n", stderr);
        return 126;
    }
    const auto before = signal(SIGPIPE, SIG_IGN);  // somebody may have killed the guard
    Guard::add(kGuardDescriptor, getpid());
    signal(SIGPIPE, before);
    setenv(libddp::elastic_keys::kLaunchPid, std::to_string(getpid()).c_str(), 1);
    limit_open_files(static_cast<rlim_t>(std::strtoull(argv[kOpenFiles], nullptr, 10)));
    execvp(argv[kProgram], argv + kProgram);
    const int reason = errno;
    // If the parent does not hear the reason, it still sees the exit status.
    [[maybe_unused]] const ssize_t sent = write(kReportDescriptor, &reason, sizeof reason);
    return reason == ENOENT ? 127 : 126;
}

rlim_t raise_open_files() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return before;
}

}  // namespace ddprun
