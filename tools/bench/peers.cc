#include "peers.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {
namespace {

namespace fs = std::filesystem;

// The scripts lie beside the program in the build tree, and in libexec once installed.
fs::path find_script(const fs::path& program) {
    const fs::path folder = program.parent_path();
    for (const fs::path& place : {folder / "peers", folder / DDP_PEERS_FROM_BIN}) {
        std::error_code ignored;
        if (fs::exists(place / "compare.py", ignored)) return place / "compare.py";
    }
    throw std::runtime_error(
        "peers: compare.py is neither beside this program nor in " DDP_PEERS_FROM_BIN);
}

}  // namespace

void run_peers(int argc, const char* const* argv) {
    const fs::path program = fs::read_symlink("/proc/self/exe");
    const fs::path script = find_script(program);
    // PyTorch and matplotlib, where they come from packages of the system, belong to the system's
    // Python.
    for (const char* python : {"/usr/bin/python3", "python3"}) {
        std::vector<std::string> command{python, "-B", script, "--bench", program};
        for (int i = 2; i < argc; ++i) command.emplace_back(argv[i]);
        std::vector<char*> pointers;
        for (std::string& word : command) pointers.push_back(word.data());
        pointers.push_back(nullptr);
        execvp(python, pointers.data());
    }
    throw std::runtime_error(std::string("peers: cannot start python3: ") + std::strerror(errno));
}

}  // namespace bench
