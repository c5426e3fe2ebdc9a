// How many processors a process can keep busy: its set of processors, and the quotas of its control
// groups.
#include "util/processors.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/quota_group.h"

namespace libddp {
namespace {

// A machine that is asked in place of this one, unless it has no processors.
int made_up_processors = 0;

}  // namespace
}  // namespace libddp

// In place of the C library's. As Linux does it: a set that is too small for the machine is
// refused.
extern "C" int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* set) noexcept {
    using libddp::made_up_processors;
    if (made_up_processors == 0) {
        const long got = syscall(SYS_sched_getaffinity, pid, bytes, set);
        if (got < 0) return -1;
        std::memset(reinterpret_cast<char*>(set) + got, 0, bytes - static_cast<size_t>(got));
        return 0;
    }
    if (bytes * CHAR_BIT < static_cast<size_t>(made_up_processors)) {
        errno = EINVAL;
        return -1;
    }
    std::memset(set, 0, bytes);
    for (int processor = 0; processor < made_up_processors; ++processor)
        CPU_SET_S(static_cast<size_t>(processor), bytes, set);
    return 0;
}

namespace libddp {
namespace {

namespace fs = std::filesystem;

// The files that processors_of_quota() reads, in a folder of the test.
class Groups : public testing::Test {
protected:
    void SetUp() override {
        char name[] = "/tmp/ddp-test-XXXXXX";
        root_ = mkdtemp(name);
        write("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n");
    }
    void TearDown() override { fs::remove_all(root_); }

    void write(const std::string& path, const std::string& text) {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path, std::ios::app) << text;
    }
    // A mount of version 2, and the group of this process.
    void second(const std::string& root, const std::string& group) {
        write("proc/self/mountinfo",
              "29 22 0:26 " + root +
                  " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
        write("proc/self/cgroup", "0::" + group + "\n");
    }
    void first(const std::string& root, const std::string& group) {
        write(
            "proc/self/mountinfo",
            "31 29 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
            "32 29 0:29 " +
                root +
                " /sys/fs/cgroup/cpu,cpuacct rw,nosuid master:9 - cgroup cgroup rw,cpu,cpuacct\n");
        write("proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:" + group + "\n0::/\n");
    }
    void quota(const std::string& group, const std::string& quota_us,
               const std::string& period_us = "100000") {
        write("sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_quota_us", quota_us + "\n");
        write("sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_period_us", period_us + "\n");
    }
    int found() const { return processors_of_quota(root_.string()); }

    fs::path root_;
};

TEST_F(Groups, WithoutAGroupThereIsNoQuota) {
    EXPECT_EQ(found(), 0);
    fs::remove_all(root_ / "proc");
    EXPECT_EQ(found(), 0);
}

TEST_F(Groups, QuotasOfVersion2AreRoundedUp) {
    second("/", "/job");
    const std::pair<const char*, int> cases[] = {
        {"400000 100000", 4}, {"350000 100000", 4},
        {"300001 100000", 4}, {"300000 100000", 3},
        {"1000 100000", 1},   {"50000 25000", 2},
        {"max 100000", 0},    {"", 0},
        {"none", 0},          {"-5 100000", 0},
        {"100000 0", 0},      {"9223372036854775807 1", INT_MAX}};
    for (const auto& [text, expected] : cases) {
        fs::remove_all(root_ / "sys");
        write("sys/fs/cgroup/job/cpu.max", std::string(text) + "\n");
        EXPECT_EQ(found(), expected) << text;
    }
}

TEST_F(Groups, TheLeastQuotaOfTheGroupsAboveCounts) {
    second("/", "/a/b/c");
    write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    write("sys/fs/cgroup/a/b/cpu.max", "500000 100000\n");
    EXPECT_EQ(found(), 5);
    write("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
    EXPECT_EQ(found(), 2);
    write("sys/fs/cgroup/a/other/cpu.max", "100000 100000\n");
    EXPECT_EQ(found(), 2);
    // Inside of a container the top has a quota, too.
    write("sys/fs/cgroup/cpu.max", "100000 100000\n");
    EXPECT_EQ(found(), 1);
}

// A container with a namespace of its own for groups, or without one.
TEST_F(Groups, APlaceThatShowsAPartOfTheHierarchy) {
    second("/docker/4711", "/docker/4711/inner");
    write("sys/fs/cgroup/inner/cpu.max", "300000 100000\n");
    write("sys/fs/cgroup/cpu.max", "400000 100000\n");
    EXPECT_EQ(found(), 3);
    for (const char* outside :
         {"/docker/47110", "/other", "/../sibling", "/docker/4711/../x", "", "nonsense"}) {
        fs::remove_all(root_ / "proc/self/cgroup");
        write("proc/self/cgroup", std::string("0::") + outside + "\n");
        EXPECT_EQ(found(), 4) << outside;
    }
}

TEST_F(Groups, Version1) {
    first("/", "/a/b:c d");
    quota("", "-1");
    EXPECT_EQ(found(), 0);
    quota("/a", "150000");
    EXPECT_EQ(found(), 2);
    quota("/a/b:c d", "30000", "30000");
    EXPECT_EQ(found(), 1);
}

TEST_F(Groups, BothVersionsAtOnceAndAPlaceWithASpace) {
    first("/", "/job");
    write("proc/self/mountinfo", "39 29 0:38 / /sys/fs/two\\040words rw - cgroup2 cgroup2 rw\n");
    quota("/job", "600000");
    EXPECT_EQ(found(), 6);
    write("sys/fs/two words/cpu.max", "200000 100000\n");
    EXPECT_EQ(found(), 2);
}

class Machine : public testing::Test {
protected:
    void TearDown() override { made_up_processors = 0; }
};

TEST_F(Machine, MayHaveMoreThan1024Processors) {
    for (const int processors : {1, 64, 1024, 1025, 4000, 1 << 17}) {
        made_up_processors = processors;
        EXPECT_EQ(ProcessorSet::of_this_thread().count(), processors);
    }
    made_up_processors = INT_MAX;
    EXPECT_EQ(ProcessorSet::of_this_thread().count(), 0);
    EXPECT_EQ(usable_processors(), 1);
}

TEST_F(Machine, ASetOfProcessorsTakesAnyNumber) {
    EXPECT_EQ(ProcessorSet({0, 1023, 1024, 5000}).count(), 4);
    EXPECT_EQ(ProcessorSet(std::vector<int>{}).count(), 0);
}

TEST_F(Machine, TheQuotaOfARealGroupBoundsIt) {
    made_up_processors = 64;
    ASSERT_GE(usable_processors(), 1);
    if (const int quota = processors_of_quota(); quota != 0 && quota < 3)
        GTEST_SKIP() << "this test has a quota of " << quota << " already";
    {
        const QuotaGroup group(250'000, 100'000);
        if (!group.made())
            GTEST_SKIP() << "this machine lets the test make no control group with a quota";
        EXPECT_EQ(processors_of_quota(), 3);
        EXPECT_EQ(usable_processors(), 3);
        made_up_processors = 2;
        EXPECT_EQ(usable_processors(), 2);
    }
    EXPECT_NE(processors_of_quota(), 3);
}

}  // namespace
}  // namespace libddp
