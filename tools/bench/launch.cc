#include "launch.h"

#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "handles.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

// libddp needs less than one to tell the other ranks who failed
constexpr std::chrono::seconds kGraceAfterFailure(5);
constexpr std::chrono::seconds kGraceAfterTerm(2);

[[noreturn]] void fail(const std::string& what, int code) {
    throw std::runtime_error(what + ": " + std::strerror(code));
}

// Signals that end a job, and the one that tells of a rank's end, are taken one by one in Job::wait
// instead of by handlers.
sigset_t awaited_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    return signals;
}

// So that no other user of this host can join the job. It goes through the environment: arguments
// are for all to see.
std::string make_secret() {
    std::array<unsigned char, 16> bytes;
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        fail("getrandom", errno);
    std::string text;
    for (const unsigned char byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

Store open_store(const std::string& secret, double timeout) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = "tcp://127.0.0.1:0";
    options.is_server = 1;
    options.secret = secret.c_str();
    options.timeout_ms = static_cast<std::int64_t>(1e3 * timeout);
    ddp_store* store = nullptr;
    Result result;
    result.check(ddp_store_create(&options, &store, result));
    return Store(store);
}

// The variables by which ddprun tells a process its place; libddp's env:// reads them.
std::vector<std::string> rank_environment(int rank, int world, int port,
                                          const std::string& secret) {
    std::vector<std::string> variables{"DDP_RANK=" + std::to_string(rank),
                                       "DDP_WORLD_SIZE=" + std::to_string(world),
                                       "DDP_LOCAL_RANK=" + std::to_string(rank),
                                       "DDP_LOCAL_WORLD_SIZE=" + std::to_string(world),
                                       "DDP_STORE=tcp://127.0.0.1:" + std::to_string(port),
                                       "DDP_STORE_HOSTED=launcher",
                                       "DDP_SECRET=" + secret};
    const std::size_t own = variables.size();
    for (char** inherited = environ; *inherited != nullptr; ++inherited) {
        const std::string variable = *inherited;
        const auto same_name = [&variable](const std::string& other) {
            return variable.compare(0, variable.find('='), other, 0, other.find('=')) == 0;
        };
        const auto end = variables.begin() + static_cast<std::ptrdiff_t>(own);
        if (std::none_of(variables.begin(), end, same_name)) variables.push_back(variable);
    }
    return variables;
}

pid_t start_rank(char** argv, std::vector<std::string> environment) {
    std::vector<char*> pointers;
    for (std::string& variable : environment) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t pid = -1;
    const int code =
        posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, argv, pointers.data());
    posix_spawnattr_destroy(&attributes);
    if (code != 0) fail("cannot start a rank", code);
    return pid;
}

// The ranks that run. Its destructor leaves none behind.
class Job {
public:
    explicit Job(double timeout) : deadline_(Clock::now() + to_duration(timeout)) {}
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    ~Job() {
        signal_all(SIGKILL);
        for (const Rank& rank : ranks_) {
            // returns at once: nothing survives SIGKILL
            if (rank.pid > 0) waitpid(rank.pid, nullptr, 0);
        }
    }

    void add(pid_t pid) { ranks_.push_back({pid}); }

    int wait() {
        while (running()) {
            react(next_signal());
            reap();
            if (running() && Clock::now() >= deadline_) escalate();
        }
        return status_;
    }

private:
    struct Rank {
        pid_t pid;  // 0 once it has ended
    };

    static Clock::duration to_duration(double seconds) {
        return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    bool running() const {
        for (const Rank& rank : ranks_) {
            if (rank.pid > 0) return true;
        }
        return false;
    }

    // Looks up at least ten times a second, as several ranks' ends may come as one signal.
    int next_signal() const {
        const sigset_t signals = awaited_signals();
        const timespec pause{0, 100'000'000};
        return sigtimedwait(&signals, nullptr, &pause);
    }

    void react(int signal) {
        if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP) return;
        note_failure(128 + signal);
        signal_all(SIGTERM);
        phase_ = Phase::asked;
        deadline_ = Clock::now() + kGraceAfterTerm;
    }

    void reap() {
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            int status = 0;
            if (ranks_[i].pid <= 0 || waitpid(ranks_[i].pid, &status, WNOHANG) != ranks_[i].pid)
                continue;
            ranks_[i].pid = 0;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            if (WIFSIGNALED(status) && phase_ == Phase::running) {
                std::cerr << "ddp-bench: rank " << i << " was ended by signal " << WTERMSIG(status)
                          << '\n';
            }
            note_failure(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
            if (phase_ == Phase::running)
                deadline_ = std::min(deadline_, Clock::now() + kGraceAfterFailure);
        }
    }

    void escalate() {
        if (status_ == 0) std::cerr << "ddp-bench: the ranks did not end within --timeout\n";
        note_failure(124);  // what timeout(1) returns
        signal_all(phase_ == Phase::running ? SIGTERM : SIGKILL);
        phase_ = Phase::asked;
        deadline_ = Clock::now() + kGraceAfterTerm;
    }

    void note_failure(int status) {
        if (status_ == 0) status_ = status;
    }

    void signal_all(int signal) const {
        for (const Rank& rank : ranks_) {
            if (rank.pid > 0) kill(rank.pid, signal);
        }
    }

    enum class Phase { running, asked };

    std::vector<Rank> ranks_;
    Phase phase_ = Phase::running;
    Clock::time_point deadline_;
    int status_ = 0;
};

}  // namespace

bool is_launched() {
    const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
    return set("DDP_RANK") || (set("RANK") && set("WORLD_SIZE")) || set("OMPI_COMM_WORLD_RANK") ||
           set("PMI_RANK");
}

int launch(int world, double timeout, char** argv) {
    // Before the store starts its threads, so that they inherit the mask and no signal ends the
    // process there.
    const sigset_t signals = awaited_signals();
    if (const int code = pthread_sigmask(SIG_BLOCK, &signals, nullptr))
        fail("pthread_sigmask", code);
    const std::string secret = make_secret();
    const Store store = open_store(secret, timeout);
    Job job(timeout);
    for (int rank = 0; rank < world; ++rank) {
        job.add(
            start_rank(argv, rank_environment(rank, world, ddp_store_port(store.get()), secret)));
    }
    return job.wait();
}

}  // namespace bench
