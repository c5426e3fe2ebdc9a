#include "job_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "util/error.h"
#include "util/host.h"
#include "util/private_file.h"
#include "util/text.h"

namespace ddprun {
namespace {

constexpr const char* kName = "/job";
constexpr std::size_t kLongestCommand = 4096;

bool is_own_folder(const std::string& path) {
    struct stat facts {};
    return lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid();
}

std::uint64_t number(const std::map<std::string, std::string>& lines, const char* key) {
    const auto found = lines.find(key);
    return found == lines.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
}

std::string text(const std::map<std::string, std::string>& lines, const char* key) {
    const auto found = lines.find(key);
    return found == lines.end() ? "" : found->second;
}

}  // namespace

bool JobFacts::runs() const {
    const auto state = libddp::process_state(pid);
    return state && state->started == started && state->letter != 'Z' && state->letter != 'X';
}

std::string generation_folder(const std::string& folder, int generation) {
    return generation == 0 ? folder : folder + "/restart-" + std::to_string(generation);
}

JobFacts own_facts(const std::vector<std::string>& program) {
    JobFacts facts;
    facts.pid = getpid();
    if (const auto state = libddp::process_state(facts.pid)) facts.started = state->started;
    for (const std::string& word : program)
        facts.command += (facts.command.empty() ? "" : " ") + word;
    std::replace(facts.command.begin(), facts.command.end(), '\n', ' ');
    facts.command.resize(std::min(facts.command.size(), kLongestCommand));
    return facts;
}

void write_job_file(const std::string& folder, const JobFacts& facts) {
    const std::string path = folder + kName, fresh = path + ".new";
    const std::string text = libddp::str(
        "pid ", facts.pid, "\nstarted ", facts.started, "\nranks ", facts.ranks, "\nnodes ",
        facts.nodes, "\nnode ", facts.node_rank, "\ngeneration ", facts.generation, "\nrecords ",
        facts.records, "\ncommand ", facts.command, "\n");
    // An earlier ddprun may have ended before it gave the file its name.
    unlink(fresh.c_str());
    libddp::write_private_file(fresh, O_EXCL, text);
    // A reader sees the old file or the new one.
    std::filesystem::rename(fresh, path);
}

std::optional<JobFacts> read_job_file(const std::string& folder) {
    libddp::FileIn file(folder + kName);
    if (!file) return std::nullopt;
    std::map<std::string, std::string> lines;
    for (std::string key, value; file >> key && std::getline(file >> std::ws, value);)
        lines[key] = value;
    JobFacts facts;
    facts.pid = static_cast<int>(number(lines, "pid"));
    facts.started = number(lines, "started");
    facts.ranks = static_cast<int>(number(lines, "ranks"));
    facts.nodes = static_cast<int>(number(lines, "nodes"));
    facts.node_rank = static_cast<int>(number(lines, "node"));
    facts.generation = static_cast<int>(number(lines, "generation"));
    facts.records = text(lines, "records");
    facts.command = text(lines, "command");
    return facts;
}

std::string disk_place() {
    const char* const given = std::getenv("TMPDIR");
    std::error_code unknown;
    const std::filesystem::path place =
        std::filesystem::absolute(given && *given ? given : "/tmp", unknown);
    return unknown ? "/tmp" : place.string();
}

std::vector<JobFacts> find_jobs() {
    std::vector<JobFacts> jobs;
    std::vector<std::string> places{kMemoryPlace};
    std::error_code unreadable;
    if (!std::filesystem::equivalent(kMemoryPlace, disk_place(), unreadable))
        places.push_back(disk_place());
    for (const std::string& place : places) {
        for (const auto& entry : std::filesystem::directory_iterator(place, unreadable)) {
            const std::string path = entry.path().string();
            if (!entry.path().filename().string().starts_with(kJobPrefix) || !is_own_folder(path))
                continue;
            const auto facts = read_job_file(path);
            if (facts && facts->runs()) jobs.push_back(*facts);
        }
    }
    std::sort(jobs.begin(), jobs.end(),
              [](const JobFacts& a, const JobFacts& b) { return a.pid < b.pid; });
    return jobs;
}

}  // namespace ddprun
