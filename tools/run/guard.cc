#include "guard.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace ddprun {
namespace {

constexpr const char* kGuardMode = "--guard";
constexpr char kAdd = '+';
constexpr char kRemove = '-';
constexpr char kFolder = '/';  // with which a path begins
constexpr Milliseconds kGuardEndTime{1000};

// The processes and folders that go with ddprun.
struct Charges {
    std::set<pid_t> groups;
    std::vector<std::string> folders;
};

// "+4711", "-4711" or "/path".
void obey(const std::string& command, Charges& charges) {
    if (command.empty()) return;
    if (command[0] == kFolder) charges.folders.push_back(command);
    const auto group = static_cast<pid_t>(std::strtol(command.c_str() + 1, nullptr, 10));
    if (group <= 1) return;
    if (command[0] == kAdd) charges.groups.insert(group);
    if (command[0] == kRemove) charges.groups.erase(group);
}

// Follows ddprun's commands until its end of the pipe closes.
Charges follow(int pipe) {
    Charges charges;
    std::string command;
    for (char c = 0;;) {
        const ssize_t count = read(pipe, &c, 1);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return charges;
        if (c == '\n') {
            obey(command, charges);
            command.clear();
        } else {
            command += c;
        }
    }
}

void tell(int pipe, const std::string& text) {
    const std::string command = text + "\n";
    // A guard that somebody killed is no reason to end the job.
    [[maybe_unused]] const ssize_t sent = write(pipe, command.data(), command.size());
}

// Gives the guard time to end, and takes its exit status so that no zombie stays.
void reap(pid_t pid) {
    const auto give_up = Clock::now() + kGuardEndTime;
    while (waitpid(pid, nullptr, WNOHANG) == 0 && Clock::now() < give_up) usleep(1000);
}

}  // namespace

Guard::Guard(uv_loop_t* loop) {
    const PipeEnds ends = make_pipe(0, UV_NONBLOCK_PIPE);
    pipe_ = ends.write;
    char name[] = "ddprun";
    std::string mode = kGuardMode;
    char* arguments[] = {name, mode.data(), nullptr};
    uv_stdio_container_t input{};
    input.flags = UV_INHERIT_FD;
    input.data.fd = ends.read;
    uv_process_options_t options{};
    options.file = "/proc/self/exe";
    options.args = arguments;
    options.flags = UV_PROCESS_DETACHED;
    options.stdio = &input;
    options.stdio_count = 1;
    process_.reset(new uv_process_t);
    const int started = uv_spawn(loop, process_.get(), &options);
    close(ends.read);
    if (started != 0) {
        close(pipe_);
        throw std::runtime_error(std::string("cannot start a process: ") + uv_strerror(started));
    }
    uv_unref(reinterpret_cast<uv_handle_t*>(process_.get()));
}

Guard::~Guard() {
    close(pipe_);
    reap(process_->pid);
}

void Guard::add(int pipe, pid_t group) {
    tell(pipe, kAdd + std::to_string(group));
}

void Guard::remove(pid_t group) {
    tell(pipe_, kRemove + std::to_string(group));
}

void Guard::add_folder(const std::string& path) {
    tell(pipe_, path);
}

bool is_guard_mode(int argc, char** argv) {
    return argc == 2 && std::strcmp(argv[1], kGuardMode) == 0;
}

int run_guard() {
    for (const int ignored : {SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGPIPE}) signal(ignored, SIG_IGN);
    const Charges charges = follow(STDIN_FILENO);
    for (const pid_t group : charges.groups) kill(-group, SIGKILL);
    std::error_code ignored;
    for (const std::string& folder : charges.folders) std::filesystem::remove_all(folder, ignored);
    return 0;
}

}  // namespace ddprun
