// Particulars of the file store: its file.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "rendezvous/file_log.h"
#include "support.h"
#include "support/few_descriptors.h"

namespace libddp::testing {
namespace {

TEST(File, TheLastParticipantDeletesTheFile) {
    TempPath path;
    auto a = open(path.uri());
    auto b = open(path.uri());
    a->set("k", "v");
    a.reset();
    EXPECT_TRUE(std::filesystem::exists(path.file()));
    EXPECT_EQ(b->get("k"), "v");
    b.reset();
    EXPECT_FALSE(std::filesystem::exists(path.file()));
    EXPECT_TRUE(open(path.uri())->list_keys("").empty());
}

TEST(File, AFenceOutlivesTheContentsAndItsParticipants) {
    TempPath path;
    {
        auto store = open(path.uri());
        store->set("k", "v");
        EXPECT_EQ(store->raise_fence(5), 5);
        // compacts the log
        for (int i = 0; i < 300; ++i) store->set("k", std::string(100'000, 'v'));
        EXPECT_EQ(store->raise_fence(0), 5);
    }
    ASSERT_TRUE(std::filesystem::exists(path.file()));
    EXPECT_LT(std::filesystem::file_size(path.file()), 100);
    {
        Child child({path.uri(), "add"});
        EXPECT_EQ(child.read_line(), "ready");
        child.kill();
    }
    auto store = open(path.uri());
    EXPECT_TRUE(store->list_keys("").empty());
    EXPECT_EQ(store->raise_fence(0), 5);
}

// One that is on its way out must not look alive to the last.
TEST(File, ThoseWhoLeaveAtOnceDeleteTheFile) {
    for (int round = 0; round < 300; ++round) {
        TempPath path;
        std::vector<std::shared_ptr<Store>> stores;
        for (int i = 0; i < 3; ++i) stores.push_back(open(path.uri()));
        std::vector<std::thread> threads;
        for (auto& store : stores) threads.emplace_back([&store] { store.reset(); });
        for (auto& thread : threads) thread.join();
        ASSERT_FALSE(std::filesystem::exists(path.file())) << "round " << round;
    }
}

TEST(File, AStaleFileIsStartedAfresh) {
    TempPath path;
    {
        Child child({path.uri(), "add"});
        EXPECT_EQ(child.read_line(), "ready");
        child.kill();
    }
    ASSERT_TRUE(std::filesystem::exists(path.file()));
    auto store = open(path.uri());
    EXPECT_TRUE(store->list_keys("").empty());
    store->set("k", "v");
    EXPECT_EQ(open(path.uri())->get("k"), "v");
}

TEST(File, AForeignFileIsLeftAlone) {
    TempPath path;
    std::ofstream(path.file()) << "somebody's thesis";
    expect_error(DDP_ERROR_INVALID_ARGUMENT, {path.file(), "not a libddp store file"},
                 [&] { open(path.uri()); });
    std::ifstream in(path.file());
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(text.str(), "somebody's thesis");
}

TEST(File, PathsThatCannotBe) {
    TempPath path;
    expect_error(DDP_ERROR_IO, {"/no/such/folder/store"},
                 [] { open("file:///no/such/folder/store"); });
    std::filesystem::create_directory(path.file());
    EXPECT_NE(error_of([&] { open(path.uri()); }).code, DDP_OK);
    std::filesystem::remove(path.file());
    std::filesystem::create_symlink("/tmp/elsewhere-of-ddp", path.file());
    EXPECT_EQ(error_of([&] { open(path.uri()); }).code, DDP_ERROR_IO);
    EXPECT_FALSE(std::filesystem::exists("/tmp/elsewhere-of-ddp"));
    std::filesystem::remove(path.file());
    ASSERT_EQ(mkfifo(path.file().c_str(), 0600), 0);
    EXPECT_EQ(error_of([&] { open(path.uri()); }).code, DDP_ERROR_INVALID_ARGUMENT);
}

TEST(File, OnlyTheOwnerMayReadIt) {
    TempPath path;
    auto store = open(path.uri());
    struct stat info {};
    ASSERT_EQ(stat(path.file().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The maker of the file could read the values that ranks put there.
TEST(File, AFileThatOthersMayOpenIsRefused) {
    TempPath path;
    std::ofstream(path.file()) << "";
    const auto refuse = [&](mode_t mode, const std::string& fault) {
        ASSERT_EQ(chmod(path.file().c_str(), mode), 0);
        expect_error(DDP_ERROR_PERMISSION_DENIED, {path.file(), fault, "chmod 600"},
                     [&] { open(path.uri()); });
        EXPECT_EQ(std::filesystem::file_size(path.file()), 0u);
    };
    refuse(0666, "open to other users");
    refuse(0604, "open to other users");
    refuse(0660, "open to its group");
    ASSERT_EQ(chmod(path.file().c_str(), 0600), 0);
    auto store = open(path.uri());
    store->set("k", "v");
    // Also one that ranks use already.
    ASSERT_EQ(chmod(path.file().c_str(), 0640), 0);
    expect_error(DDP_ERROR_PERMISSION_DENIED, {path.file(), "open to its group"},
                 [&] { open(path.uri()); });
    ASSERT_EQ(chmod(path.file().c_str(), 0600), 0);
    EXPECT_EQ(open(path.uri())->get("k"), "v");
}

TEST(File, AFileOfAnotherUserIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    TempPath path;
    std::ofstream(path.file()) << "";
    ASSERT_EQ(chmod(path.file().c_str(), 0600), 0);
    ASSERT_EQ(chown(path.file().c_str(), 4711, 4711), 0);
    expect_error(DDP_ERROR_PERMISSION_DENIED,
                 {path.file(), "another user (uid 4711)", "name another file"},
                 [&] { open(path.uri()); });
    EXPECT_EQ(std::filesystem::file_size(path.file()), 0u);
}

TEST(File, AFileDeletedUnderneathDoesNotDisturbThoseThatHaveIt) {
    TempPath path;
    auto a = open(path.uri());
    auto b = open(path.uri());
    unlink(path.file().c_str());
    a->set("k", "v");
    EXPECT_EQ(b->get("k"), "v");
    auto other = open(path.uri());  // a new store at the same place
    EXPECT_TRUE(other->list_keys("").empty());
    a.reset();
    b.reset();
    EXPECT_TRUE(std::filesystem::exists(path.file()));  // not theirs any more
}

TEST(File, ADamagedFileIsAnErrorAndNotAHang) {
    TempPath path;
    auto a = open(path.uri());
    a->set("k", "v");
    std::filesystem::resize_file(path.file(), 10);
    EXPECT_EQ(error_of([&] { a->get("other", 5000); }).code, DDP_ERROR_IO);
}

// Numbers in a header or a record that nobody wrote in good order.
TEST(File, NumbersThatCannotBeAreDamage) {
    TempPath path;
    // so that the file is not begun afresh
    const FileLog other(path.file(), Deadline::after_ms(5000));
    const auto join_with = [&](std::uint64_t start, std::uint64_t end, std::uint64_t next_owner) {
        ByteWriter header;
        header.raw("ddpfile3");
        for (const std::uint64_t number : {start, end, std::uint64_t{2}, next_owner})
            header.u64(number);
        std::fstream(path.file(), std::ios::in | std::ios::out | std::ios::binary) << header.take();
        return error_of([&] { FileLog(path.file(), Deadline::after_ms(5000)); }).code;
    };
    EXPECT_EQ(join_with(4096, 4096, 7), DDP_OK);
    EXPECT_EQ(join_with(4096, 4096, 0), DDP_ERROR_IO);
    EXPECT_EQ(join_with(4096, 4096, std::uint64_t{1} << 62), DDP_ERROR_IO);
    EXPECT_EQ(join_with(4096, 4096, UINT64_MAX), DDP_ERROR_IO);
    EXPECT_EQ(join_with(0, 4096, 7), DDP_ERROR_IO);
    EXPECT_EQ(join_with(5000, 4096, 7), DDP_ERROR_IO);
    EXPECT_EQ(join_with(4096, UINT64_MAX, 7), DDP_ERROR_IO);
    EXPECT_FALSE(other.alive(UINT64_MAX));
}

TEST(File, HistoryIsGivenBack) {
    TempPath path;
    auto a = open(path.uri());
    auto b = open(path.uri());
    a->set_will("will", "x");
    a->set("other", "kept");
    const std::string value(1 << 20, 'x');
    for (int i = 0; i < 60; ++i) a->set("k", value + std::to_string(i));
    for (int i = 0; i < 100; ++i) b->add("n", 1);
    struct stat info {};
    ASSERT_EQ(stat(path.file().c_str(), &info), 0);
    EXPECT_LT(info.st_blocks * 512, 40 << 20);
    EXPECT_EQ(b->get("k"), value + "59");
    EXPECT_EQ(a->get("n"), "100");
    auto late = open(path.uri());
    EXPECT_EQ(late->get("k").size(), value.size() + 2);
    EXPECT_EQ(late->get("other"), "kept");
    a.reset();
    EXPECT_EQ(late->get("will", kLongMs), "x");
}

TEST(File, AProcessThatCanOpenNoMoreFilesHearsSo) {
    TempPath path;
    const FewDescriptors few(0);
    expect_error(DDP_ERROR_LIMIT, {path.file(), "ulimit -n"}, [&] { open(path.uri()); });
}

// The process lives, keeps its handler, and hears which file and which limit.
TEST(File, ALimitOfFileSizesIsAnError) {
    TempPath path;
    const auto write_beyond = [&](bool ignored) {
        if (ignored) signal(SIGXFSZ, SIG_IGN);
        auto store = open(path.uri());
        const rlimit limit{16'384, 16'384};
        setrlimit(RLIMIT_FSIZE, &limit);
        store->set("small", "value");
        const ErrorInfo error = error_of([&] { store->set("large", std::string(20'000, 'x')); });
        const bool named = error.message.find(path.file()) != std::string::npos &&
                           error.message.find("16384 bytes") != std::string::npos &&
                           error.message.find("ulimit -f") != std::string::npos;
        struct sigaction action {};
        sigaction(SIGXFSZ, nullptr, &action);
        sigset_t mask;
        sigset_t pending;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        sigpending(&pending);
        const bool as_before = action.sa_handler == (ignored ? SIG_IGN : SIG_DFL) &&
                               sigismember(&mask, SIGXFSZ) == 0 &&
                               sigismember(&pending, SIGXFSZ) == 0;
        // The value that did not fit is not there, and all else goes on.
        const bool goes_on = !store->check({"large"}) && store->get("small") == "value";
        store.reset();
        std::fprintf(stderr, "%s\n", error.message.c_str());
        _exit(error.code == DDP_ERROR_IO && named && as_before && goes_on ? 0 : 1);
    };
    for (const bool ignored : {false, true})
        EXPECT_EXIT(write_beyond(ignored), ::testing::ExitedWithCode(0), "ulimit");
}

TEST(File, AStoppedHolderOfTheLockDoesNotHangTheOthers) {
    TempPath path;
    auto store = open(path.uri(), false, "", 300);
    // Another open file, as another process would have it, that takes the mutex and keeps it.
    std::atomic<bool> never{false};
    FileLog other(path.file(), Deadline::after_ms(kLongMs));
    ASSERT_TRUE(other.lock(Deadline::after_ms(kLongMs), never));
    auto start = std::chrono::steady_clock::now();
    expect_error(DDP_ERROR_TIMEOUT, {path.file(), "locked"}, [&] { store->set("k", "v"); });
    expect_error(DDP_ERROR_TIMEOUT, {path.file(), "locked"},
                 [&] { open(path.uri(), false, "", 200); });
    EXPECT_LT(elapsed_ms(start), with_slack(3000));
    start = std::chrono::steady_clock::now();
    store.reset();
    EXPECT_LT(elapsed_ms(start), with_slack(1500));
    other.unlock();
}

}  // namespace
}  // namespace libddp::testing
