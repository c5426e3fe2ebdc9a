#include "records.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "util/printable.h"
#include "why/cause.h"
#include "why/folder.h"
#include "why/report.h"
#include "why/summary.h"

namespace ddprun {
namespace {

namespace record = libddp::record;

// The room for a rank's facts besides its ring of events.
constexpr std::uint64_t kBytesOfFacts = std::uint64_t{3} << 20;
// A record takes no more than this part of what is free in memory.
constexpr std::uint64_t kShare = 8;

bool has_room(const char* folder, std::uint64_t bytes) {
    struct statvfs facts {};
    return statvfs(folder, &facts) == 0 &&
           std::uint64_t{facts.f_bavail} * facts.f_frsize / kShare >= bytes;
}

// Names of parameters are nobody else's business. A folder that is there already stays as it is;
// its records can be read by their owner alone, too.
void make_folder(const std::string& path) {
    std::error_code error;
    const bool made = std::filesystem::create_directories(path, error);
    if (error)
        throw std::runtime_error("cannot make the folder " + path +
                                 " for records: " + error.message());
    if (made) std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
}

std::int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The groups that may tell why a process of this rank has ended: those in which it still was. If it
// was in none, those that nobody has left behind. In an elastic job there is a group for each
// roster.
std::vector<const record::Group*> concerned(const std::vector<record::Group>& groups, int rank,
                                            std::int64_t since_ns) {
    std::vector<const record::Group*> its_own, others;
    for (const record::Group& group : groups) {
        const auto is_it = [&](const record::Position& position) {
            return position.process->identity.launch_rank == rank &&
                   position.process->opened_realtime_ns >= since_ns;
        };
        const auto still_in = [&](const record::Position& position) {
            return is_it(position) && !position.moved_on;
        };
        const auto other_left = [&](const record::Position& position) {
            return !is_it(position) && position.moved_on;
        };
        if (std::any_of(group.recorded.begin(), group.recorded.end(), still_in))
            its_own.push_back(&group);
        else if (rank < 0 || std::none_of(group.recorded.begin(), group.recorded.end(), other_left))
            others.push_back(&group);
    }
    return its_own.empty() ? others : its_own;
}

}  // namespace

Records::Records(const std::string& folder, JobFacts facts) : facts_(std::move(facts)) {
    make_temporary(!folder.empty());
    root_ = folder.empty() ? temporary_ : std::filesystem::absolute(folder).string();
}

// kept: the records themselves lie elsewhere.
void Records::make_temporary(bool kept) {
    const std::uint64_t of_rank = facts_.events * sizeof(record::Event) + kBytesOfFacts;
    const std::uint64_t wanted = kept ? 1 : of_rank * static_cast<std::uint64_t>(facts_.ranks);
    const bool in_memory = has_room(kMemoryPlace, wanted);
    const std::string place = in_memory ? kMemoryPlace : disk_place();
    std::string path = place + "/" + kJobPrefix + "XXXXXX";
    if (mkdtemp(path.data())) {
        temporary_ = path;
    } else if (!kept) {
        const std::string reason = std::strerror(errno);
        why_none_ = "nothing is recorded, so failures are told without what each rank was doing: ";
        if (!in_memory)
            why_none_ += std::string(kMemoryPlace) + " has less than " +
                         std::to_string((kShare * wanted) >> 20) + " MiB free, and ";
        why_none_ += "no folder can be made in " + place + " (" + reason +
                     "). Set TMPDIR or --record to a folder for records";
    }
}

Records::~Records() {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void Records::begin_generation(int generation) {
    if (root_.empty()) return;
    if (root_ == temporary_ && !folder_.empty()) record::forget_all(folder_);
    folder_ = generation_folder(root_, generation);
    try {
        make_folder(folder_);
    } catch (const std::runtime_error&) {
        folder_.clear();
        if (root_ == temporary_) return;  // nobody has asked for records
        throw;
    }
    record::forget_earlier(folder_);
    facts_.generation = generation;
    facts_.records = folder_;
    why_unseen_.clear();
    try {
        write_job_file(root_, facts_);
        if (!temporary_.empty() && temporary_ != root_) write_job_file(temporary_, facts_);
    } catch (const std::exception& error) {
        why_unseen_ = std::string("--status may not find this job: ") + error.what();
    }
}

void Records::begin_again(int rank, std::int64_t since_ns) const {
    if (root_ == temporary_ && !folder_.empty()) record::forget_before(folder_, rank, since_ns);
}

std::string Records::note(int rank, const Ending& ending, const std::string& words) const {
    using Kind = record::Sight::Kind;
    if (folder_.empty()) return "";
    const Kind kind = ending.signal != 0 ? Kind::kKilled : Kind::kExited;
    const std::string fault =
        record::add_sight(folder_, {rank, kind, ending.text(), words, now_ns()});
    return fault.empty()
               ? ""
               : "the records do not hold how rank " + std::to_string(rank) + " ended: " + fault;
}

// Afterwards nobody could see it any more: ddprun is about to end them.
void Records::note_stopped(const record::Group& group) const {
    for (const record::Position& position : group.recorded)
        if (position.life == record::Life::kStopped)
            record::add_sight(
                folder_, {position.process->identity.launch_rank, record::Sight::Kind::kStopped,
                          "was stopped", "", now_ns()});
}

std::string Records::explain(int rank, std::int64_t since_ns, bool all_end) const try {
    if (folder_.empty()) return "";
    const why::Job job = why::read_job(folder_, record::kLastEvents);
    if (all_end)
        for (const record::Group& group : job.groups) note_stopped(group);
    for (const record::Group* group : concerned(job.groups, rank, since_ns)) {
        const auto cause = record::find_cause(*group, record::kPatienceNs);
        if (!cause) continue;
        // By the sentence to which this is added. A group may number its ranks in its own way.
        const record::Position* const culprit = group->find(cause->rank);
        const bool named = rank >= 0 && culprit && culprit->process->identity.launch_rank == rank &&
                           !cause->place.empty();
        std::string text = named ? cause->place : cause->sentence;
        if (named && cause->rank != rank)
            text = "as rank " + std::to_string(cause->rank) + " of group '" + group->name + "', " +
                   text;
        // an error of the program may have several lines
        std::replace(text.begin(), text.end(), '\n', ' ');
        return libddp::printable(text);
    }
    return job.complaints.empty() ? "" : libddp::printable(job.complaints.front());
} catch (const std::exception&) {
    return "";  // the failure itself has been told
}

void Records::write_trace(const std::string& file, const why::Steps& steps) const {
    if (folder_.empty())
        throw std::runtime_error("no trace was written: there is no folder for records");
    const why::Job job = why::read_job(folder_);
    why::write_trace(file, job.processes, job.groups, steps);
}

std::string Records::pack(std::uint64_t bytes) const {
    return folder_.empty()
               ? ""
               : record::pack_records(folder_, bytes / static_cast<std::uint64_t>(facts_.ranks));
}

void Records::unpack(const std::string& packed) const {
    if (!folder_.empty()) record::unpack_records(folder_, packed);
}

std::string Records::describe() const try {
    if (folder_.empty()) return "nothing is recorded";
    const why::Job job = why::read_job(folder_, record::kLastEvents);
    std::string complaints, text;
    for (const std::string& complaint : job.complaints)
        complaints += libddp::printable(complaint) + "\n";
    for (const record::Group& group : job.groups)
        if (!record::is_over(group)) text += record::group_text(group, record::kPatienceNs);
    return complaints + (text.empty() ? "no group of several ranks is in use" : text);
} catch (const std::exception& error) {
    return std::string("the records cannot be read: ") + error.what();
}

void Records::write_report(const std::string& path) const {
    if (folder_.empty()) throw std::runtime_error("nothing is recorded");
    why::write_report(path, why::summarize(why::read_job(folder_), record::kPatienceNs));
}

}  // namespace ddprun
