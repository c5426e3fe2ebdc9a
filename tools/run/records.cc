#include "records.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "record/cause.h"
#include "report.h"
#include "summary.h"

namespace ddprun {
namespace {

namespace record = libddp::record;

// A rank's ring of events and its first facts, with room for more.
constexpr std::uint64_t kBytesOfRank = std::uint64_t{4} << 20;
// A record takes no more than this part of what is free in memory.
constexpr std::uint64_t kShare = 8;
// Who waits for less is not held up.
constexpr std::int64_t kPatienceNs = 1'000'000'000;

// kept: the records themselves lie elsewhere.
bool has_room(const char* folder, int local_ranks, bool kept) {
    struct statvfs facts {};
    if (statvfs(folder, &facts) != 0) return false;
    const std::uint64_t wanted = kept ? 1 : kBytesOfRank * static_cast<std::uint64_t>(local_ranks);
    return std::uint64_t{facts.f_bavail} * facts.f_frsize / kShare >= wanted;
}

std::string make_temporary(int local_ranks, bool kept) {
    const std::string place = has_room(kMemoryPlace, local_ranks, kept) ? kMemoryPlace : disk_place();
    std::string path = place + "/" + kJobPrefix + "XXXXXX";
    return mkdtemp(path.data()) ? path : std::string();
}

void make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw std::runtime_error("--record: cannot make " + path + ": " + error.message());
    std::filesystem::permissions(path, std::filesystem::perms::owner_all,
                                 error);  // names of parameters are nobody else's business
}

struct Reading {
    explicit Reading(const std::string& folder)
        : processes(record::read_records(folder, complaints)),
          groups(record::find_groups(processes, record::read_sights(folder))) {}

    std::vector<std::string> complaints;
    std::vector<record::ProcessRecord> processes;
    std::vector<record::Group> groups;
};

}  // namespace

Records::Records(const std::string& folder, JobFacts facts)
    : facts_(std::move(facts)),
      temporary_(make_temporary(facts_.ranks, !folder.empty())),
      root_(folder.empty() ? temporary_ : std::filesystem::absolute(folder).string()) {}

Records::~Records() {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void Records::begin_generation(int generation) {
    if (root_.empty()) return;
    folder_ = generation_folder(root_, generation);
    make_folder(folder_);
    facts_.generation = generation;
    facts_.records = folder_;
    write_job_file(root_, facts_);
    if (!temporary_.empty() && temporary_ != root_) write_job_file(temporary_, facts_);
}

void Records::note(int rank, const Ending& ending, const std::string& words) const {
    using Kind = record::Sight::Kind;
    if (!folder_.empty())
        record::add_sight(folder_, {rank, ending.signal != 0 ? Kind::kKilled : Kind::kExited, ending.text(), words});
}

// Afterwards nobody could see it any more: ddprun is about to end them.
void Records::note_stopped(const record::Group& group) const {
    for (const record::Position& position : group.ranks)
        if (position.life == record::Life::kStopped)
            record::add_sight(folder_,
                              {position.process->launch_rank, record::Sight::Kind::kStopped, "was stopped", ""});
}

std::string Records::explain(int rank) const try {
    if (folder_.empty()) return "";
    const Reading reading(folder_);
    for (const record::Group& group : reading.groups) {
        const auto cause = record::find_cause(group, kPatienceNs);
        note_stopped(group);
        if (!cause) continue;
        const bool named = cause->rank == rank && !cause->place.empty();  // by the sentence to which this is added
        std::string text = named ? cause->place : cause->sentence;
        std::replace(text.begin(), text.end(), '\n', ' ');  // an error of the program may have several lines
        return text;
    }
    return "";
} catch (const std::exception&) {
    return "";  // the failure itself has been told
}

void Records::write_trace(const std::string& file, const why::Steps& steps) const {
    if (folder_.empty()) throw std::runtime_error("no trace was written: there is no folder for records");
    const Reading reading(folder_);
    why::write_trace(file, reading.processes, reading.groups, steps);
}

std::string Records::describe() const try {
    if (folder_.empty()) return "nothing is recorded";
    const Reading reading(folder_);
    std::string text;
    for (const record::Group& group : reading.groups) {
        const auto cause = record::find_cause(group, kPatienceNs);
        text += "group '" + group.name + "': " + (cause ? cause->sentence : "no rank waits for another") + "\n";
        for (const std::string& line : record::rank_lines(group)) text += "  " + line + "\n";
    }
    return text.empty() ? "no group of several ranks has a record" : text;
} catch (const std::exception& error) {
    return std::string("the records cannot be read: ") + error.what();
}

void Records::write_report(const std::string& path) const {
    if (folder_.empty()) throw std::runtime_error("nothing is recorded");
    why::write_report(path, why::summarize(why::read_job(folder_), kPatienceNs));
}

}  // namespace ddprun
