// The file of a record: what a process writes, and what the reader makes of it and of damage.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <stdexcept>
#include <thread>

#include "record/recorder.h"
#include "util/error.h"
#include "why/cause.h"
#include "why/folder.h"
#include "why/lateness.h"
#include "why/reader.h"
#include "why/sights.h"

namespace libddp::record {
namespace {

using ::testing::HasSubstr;

class Folder {
public:
    Folder() {
        std::string path = std::filesystem::temp_directory_path() / "ddp-record-XXXXXX";
        if (!mkdtemp(path.data())) throw std::runtime_error("no folder");
        path_ = path;
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// Runs this in a process of its own, which has a record of its own.
void in_process(const std::string& folder, const std::function<void()>& body,
                const char* events = "64") {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        setenv("DDP_RECORD", folder.c_str(), 1);
        setenv("DDP_RECORD_EVENTS", events, 1);
        setenv("DDP_RANK", "3", 1);
        body();
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
}

ProcessRecord read_one(const std::string& folder) {
    std::vector<std::string> complaints;
    auto records = read_records(folder, complaints);
    EXPECT_EQ(complaints, std::vector<std::string>());
    EXPECT_EQ(records.size(), 1u);
    return records.empty() ? ProcessRecord{} : std::move(records.front());
}

// Writes a record as a rank does that has all kinds of facts.
void write_everything() {
    const Recorder group = Recorder::of_group(1, 4, "world", "group/7", "tcp");
    AnnouncedStep* announced = nullptr;
    const Recorder context = group.of_context({"weight", "bias", ""}, announced);
    context.plan({{2, 1}, {0}});
    context.plan({{0}, {1, 2}});
    announced[1] = 6;
    group.write({.kind = EventKind::kJoined});
    group.write(
        {.kind = EventKind::kOperationBegin, .step = 5, .bucket = 1, .bytes = 400, .sequence = 9});
    context.write({.kind = EventKind::kStepBegin, .step = 5});
    PeerFact* peers = group.peers({0, 2, 2});
    peers[1].arrived = 10;
    peers[2].arrived = 20;
    group.beat(true);
    note_failure({DDP_ERROR_INTERNAL, "the first"});
    note_failure({DDP_ERROR_MISMATCH, std::string(5000, 'x')});
    note_failure({DDP_ERROR_TIMEOUT, "looked for"});
    mark_begin("data");
    mark_end();
    mark_begin("data");
    set_workload(32, 1000);
    ErrorInfo verdict{DDP_ERROR_TIMEOUT, "too late"};
    verdict.rank = 2;
    verdict.step = 5;
    group.broken(verdict);
}

TEST(Format, KeepsWhatAProcessWrote) {
    const Folder folder;
    in_process(folder.path(), write_everything);
    const ProcessRecord record = read_one(folder.path());
    EXPECT_EQ(record.identity.launch_rank, 3);
    EXPECT_EQ(record.workload.samples, 32);
    EXPECT_EQ(record.workload.steps, 1000);
    EXPECT_EQ(record.lost, 0u);
    EXPECT_GT(record.alive_ns, record.opened_monotonic_ns);
    ASSERT_TRUE(record.failure);
    EXPECT_EQ(record.failure->status, DDP_ERROR_MISMATCH);
    EXPECT_THAT(record.failure->message, ::testing::MatchesRegex("x+"));
    EXPECT_EQ(record.mark(0), "data");
    EXPECT_EQ(record.mark(1), "?");
    EXPECT_EQ(record.mark(-1), "?");
    ASSERT_EQ(record.groups.size(), 1u);
    const GroupRecord& group = record.groups[0];
    EXPECT_EQ(group.rank, 1);
    EXPECT_EQ(group.world, 4);
    EXPECT_EQ(group.name, "world");
    EXPECT_EQ(group.key, "group/7");
    EXPECT_EQ(group.backend, "tcp");
    ASSERT_EQ(group.verdicts.size(), 1u);
    EXPECT_EQ(group.verdicts[0].message, "too late");
    EXPECT_EQ(group.verdicts[0].rank, 2);
    ASSERT_EQ(group.peers.size(), 2u);
    EXPECT_EQ(group.peers[1].rank, 2);
    EXPECT_EQ(group.peers[1].arrived, 30u);
    ASSERT_EQ(record.contexts.size(), 1u);
    const ContextRecord& context = record.contexts[0];
    EXPECT_EQ(context.group, group.owner);
    EXPECT_EQ(*context.params, (std::vector<std::string>{"weight", "bias", ""}));
    EXPECT_EQ(context.announced, (std::vector<AnnouncedStep>{0, 6, 0}));
    EXPECT_EQ(context.buckets, (std::vector<std::vector<std::int32_t>>{{0}, {1, 2}}));
    ASSERT_EQ(record.events.size(), 7u);
    const Event& operation = record.events[1];
    EXPECT_EQ(operation.kind, EventKind::kOperationBegin);
    EXPECT_EQ(operation.owner, group.owner);
    EXPECT_EQ(operation.sequence, 9);
    EXPECT_EQ(operation.bytes, 400u);
    EXPECT_EQ(operation.bucket, 1);
    EXPECT_EQ(operation.step, 5);
}

TEST(Format, TheNewestEventsTakeThePlaceOfTheOldest) {
    const Folder folder;
    in_process(folder.path(), [] {
        const Recorder group = Recorder::of_group(0, 2, "a", "a", "shm");
        for (int i = 0; i < 1000; ++i)
            group.write({.kind = EventKind::kOperationBegin, .sequence = i});
    });
    const ProcessRecord record = read_one(folder.path());
    ASSERT_EQ(record.events.size(), 64u);
    EXPECT_EQ(record.events.front().sequence, 936);
    EXPECT_EQ(record.events.back().sequence, 999);
    EXPECT_EQ(record.lost, 936u);
}

TEST(Format, ThreadsWriteAtTheSameTime) {
    const Folder folder;
    in_process(
        folder.path(),
        [] {
            const Recorder group = Recorder::of_group(0, 2, "a", "a", "shm");
            std::vector<std::thread> threads;
            for (int thread = 0; thread < 4; ++thread)
                threads.emplace_back([&group, thread] {
                    for (int i = 0; i < 500; ++i)
                        group.write(
                            {.kind = EventKind::kOperationBegin, .sequence = i, .param = thread});
                });
            for (auto& thread : threads) thread.join();
        },
        "2048");
    const ProcessRecord record = read_one(folder.path());
    EXPECT_EQ(record.events.size(), 2000u);
    std::vector<std::int64_t> next(4, 0);
    for (const Event& event : record.events)
        EXPECT_EQ(event.sequence, next[static_cast<std::size_t>(event.param)]++);
}

TEST(Format, AProcessAfterAForkHasARecordOfItsOwn) {
    const Folder folder;
    in_process(folder.path(), [] {
        const Recorder group = Recorder::of_group(0, 2, "parent", "a", "shm");
        if (fork() == 0) {
            Recorder::of_group(1, 2, "child", "a", "shm");
            _exit(0);
        }
        wait(nullptr);
        group.write({.kind = EventKind::kJoined});
    });
    std::vector<std::string> complaints;
    const auto records = read_records(folder.path(), complaints);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_NE(records[0].identity.pid, records[1].identity.pid);
    EXPECT_NE(records[0].groups.at(0).name, records[1].groups.at(0).name);
}

TEST(Format, WithoutAFolderNothingIsRecorded) {
    in_process("/no-such-folder", [] {
        const Recorder group = Recorder::of_group(0, 2, "a", "a", "shm");
        if (group) _exit(1);
        group.write({.kind = EventKind::kJoined});
        group.beat(true);
        note_failure({DDP_ERROR_INTERNAL, "an error"});
        mark_begin("a");
        mark_end();
        if (group.peers({1})) _exit(2);
    });
}

std::uintmax_t size_of_record(const std::string& folder) {
    return std::filesystem::file_size(read_one(folder).path);
}

// As in an elastic job, where the context goes to the group of each roster.
TEST(Format, NamesOfParametersAreWrittenOnce) {
    const std::vector<std::string> names(1000, std::string(100, 'x'));
    const auto write = [&names](int rosters) {
        const Folder folder;
        in_process(folder.path(), [&] {
            for (int i = 0; i < rosters; ++i) {
                const Recorder group = Recorder::of_group(0, 2, "a", std::to_string(i), "shm");
                AnnouncedStep* announced = nullptr;
                const Recorder context = group.of_context(names, announced);
                announced[7] = static_cast<AnnouncedStep>(i + 1);
                context.plan({{3}});
            }
            AnnouncedStep* announced = nullptr;
            Recorder::of_group(0, 2, "b", "b", "shm").of_context({"weight", "bias"}, announced);
        });
        const ProcessRecord record = read_one(folder.path());
        EXPECT_EQ(record.contexts.size(), static_cast<std::size_t>(rosters) + 1);
        for (int i = 0; i < rosters; ++i) {
            const ContextRecord& context = record.contexts[static_cast<std::size_t>(i)];
            EXPECT_EQ(*context.params, names);
            EXPECT_EQ(context.announced[7], static_cast<AnnouncedStep>(i + 1));
            EXPECT_EQ(context.group, record.groups[static_cast<std::size_t>(i)].owner);
            EXPECT_EQ(context.buckets, (std::vector<std::vector<std::int32_t>>{{3}}));
        }
        EXPECT_EQ(*record.contexts.back().params, (std::vector<std::string>{"weight", "bias"}));
        return size_of_record(folder.path());
    };
    EXPECT_LT(write(11) - write(1), 10 * (4 * 1000 + 4 * kPage));
}

TEST(Format, AProgramMayMakeAnyNumberOfGroups) {
    const Folder folder;
    in_process(folder.path(), [] {
        Recorder first;
        for (int i = 0; i < 10'000; ++i) {
            const Recorder group = Recorder::of_group(0, 2, "a", std::to_string(i), "shm");
            if (i == 0) first = group;
            AnnouncedStep* announced = nullptr;
            const Recorder context = group.of_context({"a"}, announced);
            if (context) context.plan({{0}});
            group.peers({1});
            group.write({.kind = EventKind::kJoined});
        }
        first.broken({DDP_ERROR_TIMEOUT, "too late"});
    });
    const ProcessRecord record = read_one(folder.path());
    EXPECT_EQ(record.groups.size(), 2000u);  // each with four facts
    EXPECT_EQ(record.groups.front().verdicts.size(), 1u);
}

TEST(Format, AFileThatIsBeingMadeIsNoDamage) {
    const Folder folder;
    std::ofstream(folder.path() + "/a.record") << "";
    std::ofstream(folder.path() + "/b.record") << std::string(10 * kPage, '\0');
    std::vector<std::string> complaints;
    EXPECT_TRUE(read_records(folder.path(), complaints).empty());
    EXPECT_EQ(complaints, std::vector<std::string>());
}

TEST(Format, TheFileIsNobodyElsesBusiness) {
    const Folder folder;
    in_process(folder.path(), write_everything);
    struct stat facts {};
    ASSERT_EQ(stat(read_one(folder.path()).path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

TEST(Format, AConnectionIsNamedByTheNumbersOfTheGroup) {
    const Folder folder;
    in_process(folder.path(), [] {
        const Recorder group = Recorder::of_group(0, 6, "a", "a", "hierarchical");
        const Connecting whole(group);
        {
            const Connecting part({1, 3, 5});
            Connecting::peers({0, 2});
        }
        Connecting::peers({4});
    });
    const ProcessRecord record = read_one(folder.path());
    std::vector<std::int32_t> ranks;
    for (const Peer& peer : record.groups.at(0).peers) ranks.push_back(peer.rank);
    EXPECT_EQ(ranks, (std::vector<std::int32_t>{1, 5, 4}));
}

std::string bytes_of_a_record() {
    const Folder folder;
    in_process(folder.path(), write_everything);
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        path = entry.path();
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// As the tools do. Damage may give a complaint, and nothing else.
void read(std::string_view bytes) {
    static const Folder folder;
    const std::string path = folder.path() + "/x.record";
    std::filesystem::remove(path);  // a file system may take its time where a file gets shorter
    std::ofstream(path, std::ios::binary) << bytes;
    std::vector<std::string> complaints;
    const std::vector<ProcessRecord> records = read_records(folder.path(), complaints);
    EXPECT_LE(records.size() + complaints.size(), 1u);
    for (const Group& group : find_groups(records, {})) {
        group_text(group, 0);
        find_pace(group);
    }
}

TEST(Damage, OfAFileThatIsNoRecord) {
    for (const std::string& bytes : {std::string("nothing"), "ddprec2\n" + std::string(10, '\0')}) {
        const Folder folder;
        std::ofstream(folder.path() + "/x.record") << bytes;
        std::ofstream(folder.path() + "/other-file") << bytes;
        std::vector<std::string> complaints;
        EXPECT_TRUE(read_records(folder.path(), complaints).empty());
        ASSERT_EQ(complaints.size(), 1u);
        EXPECT_THAT(complaints[0], HasSubstr("x.record is not a record of libddp"));
    }
}

// A process makes it at this moment.
TEST(Damage, OfAFileThatIsEmptyIsNone) {
    for (const std::size_t size : {0, 100'000}) {
        const Folder folder;
        std::ofstream(folder.path() + "/x.record") << std::string(size, '\0');
        std::vector<std::string> complaints;
        EXPECT_TRUE(read_records(folder.path(), complaints).empty());
        EXPECT_EQ(complaints, std::vector<std::string>());
    }
}

TEST(Damage, OfATruncatedFile) {
    const std::string whole = bytes_of_a_record();
    for (std::size_t size = 0; size < whole.size(); size += 97)
        read(std::string_view(whole).substr(0, size));
}

TEST(Damage, AtRandom) {
    const std::string whole = bytes_of_a_record();
    std::mt19937 random(1);
    // Most of a file is empty: damage what is not, and here and there the rest.
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < whole.size(); ++i)
        if (whole[i] != '\0' || i % 64 == 0) used.push_back(i);
    for (int round = 0; round < 3000; ++round) {
        std::string bytes = whole;
        for (unsigned damage = 1 + random() % 6; damage > 0; --damage)
            bytes[used[random() % used.size()]] =
                static_cast<char>(random() % 3 == 0 ? 0xff : random());
        read(bytes);
    }
}

mode_t mode_of(const std::string& path) {
    struct stat facts {};
    EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
    return facts.st_mode & 07777;
}

// Sights that the launcher writes beside the records.
TEST(Sights, AreNobodyElsesBusiness) {
    const Folder folder, other;
    const mode_t before = umask(022);
    in_process(folder.path(), write_everything);
    add_sight(folder.path(), {0, Sight::Kind::kExited, "exited with status 1", "", 5});
    const std::string packed = pack_records(folder.path(), 1 << 20);
    unpack_records(other.path(), packed);
    std::size_t files = 0;
    for (const Folder* made : {&folder, &other})
        for (const auto& entry : std::filesystem::directory_iterator(made->path())) {
            EXPECT_EQ(mode_of(entry.path()), 0600u) << entry.path();
            ++files;
        }
    umask(before);
    EXPECT_EQ(files, 4u);
}

TEST(Sights, AreNotWrittenThroughALink) {
    const Folder folder, other;
    add_sight(folder.path(), {0, Sight::Kind::kExited, "exited with status 1", "", 5});
    const std::string packed = pack_records(folder.path(), 1 << 20);
    const std::string victim = other.path() + "/victim";
    std::ofstream(victim) << "precious\n";
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        std::filesystem::remove(entry.path());
        std::filesystem::create_symlink(victim, entry.path());
    }
    add_sight(folder.path(), {0, Sight::Kind::kExited, "exited with status 1", "", 5});
    EXPECT_THROW(unpack_records(folder.path(), packed), std::runtime_error);
    std::ifstream file(victim);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious\n");
}

TEST(Sights, AreReadAsTheyWereWritten) {
    const Folder folder;
    EXPECT_TRUE(read_sights(folder.path()).empty());
    add_sight(folder.path(),
              {2, Sight::Kind::kKilled, "was killed by signal 9 (SIGKILL)", "MemoryError: 3", 5});
    add_sight(folder.path(), {0, Sight::Kind::kStopped, "was stopped"});
    const auto sights = read_sights(folder.path());
    ASSERT_EQ(sights.size(), 2u);
    EXPECT_EQ(sights[0].launch_rank, 2);
    EXPECT_EQ(sights[0].kind, Sight::Kind::kKilled);
    EXPECT_EQ(sights[0].text, "was killed by signal 9 (SIGKILL)");
    EXPECT_EQ(sights[0].words, "MemoryError: 3");
    EXPECT_EQ(sights[0].realtime_ns, 5);
    EXPECT_EQ(sights[1].kind, Sight::Kind::kStopped);
    EXPECT_EQ(sights[1].text, "was stopped");
    EXPECT_EQ(sights[1].words, "");
}

}  // namespace
}  // namespace libddp::record
