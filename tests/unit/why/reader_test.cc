// A reader of the records of this process, whole and in part.
#include "why/reader.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "record/recorder.h"
#include "util/deadline.h"
#include "why/folder.h"
#include "why/sights.h"

namespace libddp::record {
namespace {

constexpr std::uint64_t kRing = 64;

// The record belongs to the process, so there is one for all tests.
class Reader : public testing::Test {
protected:
    static void SetUpTestSuite() {
        char path[] = "/tmp/record-XXXXXX";
        ASSERT_NE(mkdtemp(path), nullptr);
        folder = path;
        setenv("DDP_RECORD", path, 1);
        setenv("DDP_RECORD_EVENTS", "64", 1);
        group = Recorder::of_group(0, 1, "name", "key", "tcp");
        AnnouncedStep* announced = nullptr;
        context = group.of_context({"one", "two"}, announced);
    }
    static void TearDownTestSuite() { std::filesystem::remove_all(folder); }

    static ProcessRecord read(const Limits& limits = {}) {
        std::vector<std::string> complaints;
        auto records = read_records(folder, complaints, limits);
        EXPECT_EQ(complaints, std::vector<std::string>());
        EXPECT_EQ(records.size(), 1U);
        return std::move(records.at(0));
    }
    // Each is an operation; its sequence is its number.
    static void write_operations(int count) {
        for (int i = 0; i < count; ++i)
            group.write({.kind = EventKind::kOperationEnd,
                         .bytes = 10,
                         .sequence = ++written,
                         .since_ns = now_ns()});
    }

    static inline std::string folder;
    static inline Recorder group, context;
    static inline std::int64_t written = 0;
};

TEST_F(Reader, FindsTheNewestEventsWhereverTheyLie) {
    for (const int more : {5, 58, 1, 1, 30, 64, 200}) {
        write_operations(more);
        for (const std::uint64_t most : {1, 7, 63, 64, 1000}) {
            const ProcessRecord record = read({.events = most});
            const auto kept =
                std::min<std::uint64_t>({most, kRing, static_cast<std::uint64_t>(written)});
            ASSERT_EQ(record.events.size(), kept);
            for (std::size_t i = 0; i < kept; ++i)
                EXPECT_EQ(record.events[i].sequence,
                          written - static_cast<std::int64_t>(kept - 1 - i));
            EXPECT_EQ(record.lost, static_cast<std::uint64_t>(written) - kept);
        }
    }
}

// The ring goes round many times while the reader reads it once.
TEST_F(Reader, LeavesOutEventsThatAreBeingWritten) {
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        for (std::int64_t n = 1; !stop; ++n)
            group.write({.kind = EventKind::kLaunch,
                         .step = n,
                         .bucket = static_cast<std::int32_t>(n % 1000),
                         .bytes = static_cast<std::uint64_t>(n),
                         .sequence = n,
                         .param = static_cast<std::int32_t>(n % 1000)});
    });
    std::size_t torn = 0;
    const Deadline end = Deadline::after_ms(500);
    while (!end.expired())
        for (const Event& event : read().events)
            torn += event.kind == EventKind::kLaunch &&
                    (event.sequence != event.step || event.param != event.step % 1000 ||
                     event.bytes != static_cast<std::uint64_t>(event.step) ||
                     event.bucket != event.step % 1000);
    stop = true;
    writer.join();
    EXPECT_EQ(torn, 0U);
    written = static_cast<std::int64_t>(read().events.back().number);
}

TEST_F(Reader, TotalsOutliveTheEvents) {
    const Totals before = read().groups.at(0).totals;
    write_operations(1000);
    for (int step = 0; step < 100; ++step) {
        context.write({.kind = EventKind::kStepEnd, .step = step, .detail = step % 4 == 3});
        ++written;
    }
    const Totals after = read().groups.at(0).totals;
    EXPECT_EQ(after.operations - before.operations, 1000U);
    EXPECT_EQ(after.bytes - before.bytes, 10'000U);
    EXPECT_GE(after.operation_ns, before.operation_ns);
    EXPECT_LT(after.operation_ns - before.operation_ns, 1'000'000'000U);
    EXPECT_EQ(after.steps - before.steps, 100U);
    EXPECT_EQ(after.synced_steps - before.synced_steps, 25U);
    EXPECT_EQ(after.left_ns, 0);
    group.write({.kind = EventKind::kLeft});
    ++written;
    EXPECT_GT(read().groups.at(0).totals.left_ns, 0);
}

TEST_F(Reader, RefusesMoreFactsThanItWants) {
    std::vector<std::string> complaints;
    // there are a group and a context
    EXPECT_TRUE(read_records(folder, complaints, {.fact_bytes = kPage}).empty());
    ASSERT_EQ(complaints.size(), 1U);
    EXPECT_NE(complaints[0].find("too many facts"), std::string::npos) << complaints[0];
    read({.fact_bytes = 2 * kPage});
}

// A folder on another host.
class Other {
public:
    Other() { EXPECT_NE(mkdtemp(path_), nullptr); }
    ~Other() { std::filesystem::remove_all(path_); }
    std::string path() const { return path_; }

private:
    char path_[32] = "/tmp/record-other-XXXXXX";
};

TEST_F(Reader, ReadsWhatWasPackedOnAnotherHost) {
    write_operations(40);
    add_sight(folder, {0, Sight::Kind::kKilled, "was killed by signal 9 (SIGKILL)", "last words"});
    const ProcessRecord here = read();
    const Other other;
    unpack_records(other.path(), pack_records(folder, 1 << 20));
    unpack_records(other.path(), pack_records(folder, 1 << 20));  // nothing comes twice
    std::vector<std::string> complaints;
    const auto records = read_records(other.path(), complaints);
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].lost, here.lost);
    ASSERT_EQ(records[0].events.size(), here.events.size());
    for (std::size_t i = 0; i < here.events.size(); ++i)
        EXPECT_EQ(records[0].events[i].number, here.events[i].number);
    ASSERT_EQ(records[0].contexts.size(), 1U);
    EXPECT_EQ(*records[0].contexts[0].params, *here.contexts[0].params);
    const auto sights = read_sights(other.path());
    ASSERT_EQ(sights.size(), 1U);
    EXPECT_EQ(sights[0].words, "last words");
    EXPECT_EQ(pack_records(folder, 1024).find(".record"), std::string::npos)
        << "one that is too large is left out";
}

TEST_F(Reader, RefusesPackedRecordsThatAreDamaged) {
    const Other other;
    const std::string packed = pack_records(folder, 1 << 20);
    for (const std::string& bad : {std::string("../x.record\n1\na"), std::string("x.record\n2\na"),
                                   std::string("x.record\n-1\n"), std::string("x.txt\n1\na"),
                                   std::string("x.record"), packed.substr(0, packed.size() - 1)})
        EXPECT_THROW(unpack_records(other.path(), bad), std::runtime_error) << bad.substr(0, 20);
    EXPECT_FALSE(std::filesystem::exists(other.path() + "/../x.record"));
}

}  // namespace
}  // namespace libddp::record
