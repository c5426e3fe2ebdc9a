#include "program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "util/text.h"

namespace ddprun {
namespace {

std::string search_path(const Variables& extra) {
    const char* own = std::getenv("PATH");
    std::string path = own ? own : "/bin:/usr/bin";
    for (const auto& [name, value] : extra) {
        if (name == "PATH") path = value;
    }
    return path;
}

bool is_file(const std::string& path) {
    struct stat facts {};
    return stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
}

bool exists(const std::string& path) {
    return access(path.c_str(), F_OK) == 0;
}

ProgramCheck check_file(const std::string& program, const std::string& path) {
    if (!exists(path)) return {127, "cannot find the program '" + program + "'"};
    if (!is_file(path)) return {126, "cannot run '" + program + "': it is not a file"};
    if (access(path.c_str(), X_OK) != 0)
        return {126, "cannot run '" + program + "': it is not executable"};
    return {};
}

}  // namespace

ProgramCheck check_program_file(const std::string& program, const Variables& extra) {
    if (program.find('/') != std::string::npos) return check_file(program, program);
    ProgramCheck result{127, "cannot find the program '" + program + "' in PATH"};
    if (exists(program)) result.sentence += " (for the one in this folder write ./" + program + ")";
    libddp::TextIn folders(search_path(extra));
    for (std::string folder; std::getline(folders, folder, ':');) {
        const std::string path = (folder.empty() ? "." : folder) + "/" + program;
        if (!is_file(path)) continue;
        ProgramCheck found = check_file(program, path);
        if (found.status == 0) return found;
        result = std::move(found);
    }
    return result;
}

}  // namespace ddprun
