#include "why/report.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace why {
namespace {

namespace fs = std::filesystem;

// In the build tree report.py lies beside ddp-why, in a wheel in a folder beside ddprun, and once
// installed in libexec.
std::string find_script() {
    const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
    for (const char* place : {"../why/report.py", "libexec/report.py", DDP_REPORT_FROM_BIN})
        if (std::error_code ignored; fs::exists(folder / place, ignored)) return folder / place;
    throw std::runtime_error("a report needs " +
                             (folder / DDP_REPORT_FROM_BIN).lexically_normal().string() +
                             ", which is not there");
}

[[noreturn]] void fail(const std::string& what, int error) {
    throw std::runtime_error(what + ": " + std::strerror(error));
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// A file without a name that holds the text, to be read from its beginning.
File file_of(const std::string& text) {
    File file(std::tmpfile(), std::fclose);
    if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
        std::fflush(file.get()) != 0)
        fail("cannot write a temporary file", errno);
    std::rewind(file.get());
    return file;
}

// As a shell says it of a program that is not there.
constexpr int kNotRun = 127;

// The status of a program with this standard input.
int run(std::initializer_list<const char*> words, int input) {
    std::vector<char*> command;
    for (const char* word : words) command.push_back(const_cast<char*>(word));
    command.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    pid_t child = 0;
    const int error = posix_spawnp(&child, command[0], &actions, nullptr, command.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return kNotRun;
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail(std::string("lost ") + command[0], errno);
    return status;
}

// The one of PATH may be that of a virtual environment. Debian's packages belong to the other.
const char* find_python(int input) {
    constexpr const char* kAsk =
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('plotly') is None)";
    for (const char* python : {"python3", "/usr/bin/python3"})
        if (run({python, "-c", kAsk}, input) == 0) return python;
    return "python3";  // report.py says what it lacks
}

}  // namespace

void write_report(const std::string& path, const std::string& summary) {
    const std::string script = find_script();
    const File input = file_of(summary);
    const int descriptor = fileno(input.get());
    if (run({find_python(descriptor), "-B", script.c_str(), "-", path.c_str()}, descriptor) != 0)
        throw std::runtime_error("python3 has made no report");
}

}  // namespace why
