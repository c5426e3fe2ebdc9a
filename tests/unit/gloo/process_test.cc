// Ranks as processes, one of which is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>

#include "unit/backend/fake_host.h"

extern char** environ;

namespace libddp {
namespace {

using namespace testing_backend;
using Clock = std::chrono::steady_clock;

class Processes {
public:
    Processes(int world, const std::string& options) {
        char name[] = "/tmp/gloo_test.XXXXXX";
        folder_ = mkdtemp(name);
        for (int r = 0; r < world; ++r) {
            std::vector<std::string> words = {GLOO_RANK_PROGRAM, folder_, std::to_string(r),
                                              std::to_string(world), options};
            std::vector<char*> argv;
            for (auto& word : words) argv.push_back(word.data());
            argv.push_back(nullptr);
            pid_t pid = -1;
            EXPECT_EQ(posix_spawn(&pid, GLOO_RANK_PROGRAM, nullptr, nullptr, argv.data(), environ),
                      0);
            pids_.push_back(pid);
        }
    }
    ~Processes() {
        for (pid_t pid : pids_)
            if (pid > 0) {
                kill(pid, SIGKILL);
                waitpid(pid, nullptr, 0);
            }
        std::filesystem::remove_all(folder_);
    }

    bool all_going() {
        for (int tries = 0; tries < 2000; ++tries) {
            std::size_t going = 0;
            for (std::size_t r = 0; r < pids_.size(); ++r)
                going += std::filesystem::exists(folder_ + "/going." + std::to_string(r));
            if (going == pids_.size()) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return false;
    }
    void signal(int rank, int number) { kill(pids_[static_cast<std::size_t>(rank)], number); }
    // The exit code, or -1 if the process did not end in time or ended by a signal.
    int wait(int rank, std::int64_t timeout_ms) {
        pid_t& pid = pids_[static_cast<std::size_t>(rank)];
        const auto begin = Clock::now();
        int status = 0;
        while (waitpid(pid, &status, WNOHANG) == 0) {
            if (elapsed_ms(begin) > timeout_ms) return -1;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        pid = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

private:
    std::string folder_;
    std::vector<pid_t> pids_;
};

class KilledRank : public testing::TestWithParam<const char*> {};

TEST_P(KilledRank, TheOthersReturnAnErrorWithinTwoSeconds) {
    for (int repeat = 0; repeat < 3; ++repeat) {
        Processes processes(4, std::string("algorithm=") + GetParam());
        ASSERT_TRUE(processes.all_going());
        const auto begin = Clock::now();
        processes.signal(2, SIGKILL);
        for (int rank : {0, 1, 3})
            EXPECT_EQ(processes.wait(rank, with_slack(2000)), 100 - DDP_ERROR_RANK_FAILED)
                << "rank " << rank;
        EXPECT_LT(elapsed_ms(begin), with_slack(2000));
    }
}

INSTANTIATE_TEST_SUITE_P(All, KilledRank, testing::Values("direct", "ring", "bcube"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace libddp
