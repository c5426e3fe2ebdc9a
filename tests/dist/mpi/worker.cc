// One rank of a job that goes wrong, for failure_test.py. Unlike the other programs here it needs
// no mpirun:
//
//     worker CASE [KEY=VALUE...]     rank, world, store and timeout_ms: as in ddp_group_options; options: backend_options
//
// join_only=0,1: only these processes of the job do that, the others wait for idle_ms. level=N: the
// program initialises MPI. Every line that it prints begins with "rank R: ". It exits with 0 unless
// something happens that the case does not expect: the failure of another rank must never keep a
// process from ending well.
#include <dlfcn.h>
#include <execinfo.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> module_has_no_threads{false};

bool called_by_module() {
    void* frames[32];
    const int count = backtrace(frames, 32);
    for (int i = 0; i < count; ++i) {
        Dl_info info{};
        if (dladdr(frames[i], &info) != 0 &&
            std::string(info.dli_fname).find("libddp-mpi") != std::string::npos)
            return true;
    }
    return false;
}

std::map<std::string, std::string> settings;

std::string setting(const std::string& key, const std::string& otherwise) {
    const auto found = settings.find(key);
    return found == settings.end() ? otherwise : found->second;
}
long number(const std::string& key, long otherwise) {
    return std::stol(setting(key, std::to_string(otherwise)));
}

int my_rank() {
    const char* process = std::getenv("OMPI_COMM_WORLD_RANK");
    return static_cast<int>(number("rank", process ? std::atol(process) : 0));
}

void say(const std::string& text) {
    std::printf("rank %d: %s\n", my_rank(), text.c_str());
    std::fflush(stdout);
}

void nap(long ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

ddp::Group join(int rank, const char* name = "world",
                long timeout_ms = number("timeout_ms", 20'000)) {
    const std::string store = setting("store", ""), options_text = setting("options", "");
    auto options = ddp::Group::defaults();
    options.rank = rank;
    options.world_size = static_cast<int>(number("world", -1));
    options.init_method = store.empty() ? nullptr : store.c_str();
    options.group_name = name;
    options.backend = "mpi";
    options.backend_options = options_text.c_str();
    options.timeout_ms = timeout_ms;
    if (number("unchecked", 0)) options.flags = DDP_GROUP_NO_MATCH_CHECK;
    return ddp::Group(options);
}

// Does something that may fail, and says how it ended and how long it took.
template <class F>
void report(const std::string& what, F&& body) {
    const auto began = Clock::now();
    std::string how = "fine";
    try {
        body();
    } catch (const ddp::Error& error) {
        how = std::string(ddp_status_name(error.status())) + " of rank " +
              std::to_string(error.rank()) + ": " + error.what();
    }
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count();
    say(what + " after " + std::to_string(ms) + " ms: " + how);
}

void allreduce(ddp::Group& group, std::size_t count) {
    std::vector<float> data(count, 1);
    group.allreduce(data.data(), count).wait();
    for (float value : data)
        if (value != static_cast<float>(group.world_size())) {
            say("WRONG SUM");
            std::_Exit(3);
        }
}

// MPI is initialised without haste, whatever timeout_ms is.
ddp::Group join_warm(int rank) {
    join(rank, "first", 20'000);
    return join(rank);
}

// The rank `late` comes to the second operation too late.
void late() {
    auto group = join_warm(my_rank());
    allreduce(group, 1000);
    if (my_rank() == number("late", -1)) nap(number("ms", 0));
    report("allreduce",
           [&] { allreduce(group, static_cast<std::size_t>(number("count", 1'000'000))); });
    report("allreduce again", [&] { allreduce(group, 10); });
}

// All wait for the last rank; a second thread of rank 0 gives up.
void aborted() {
    auto group = join(my_rank());
    allreduce(group, 1000);
    std::thread other;
    Clock::time_point called;
    if (my_rank() == 0)
        other = std::thread([&] {
            nap(500);
            called = Clock::now();
            group.abort("the test says so");
        });
    if (my_rank() == group.world_size() - 1) nap(1500);
    report("allreduce", [&] { allreduce(group, 1'000'000); });
    if (other.joinable()) {
        const auto ms =
            std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - called).count();
        say("returned " + std::to_string(ms) + " ms after the abort");
        other.join();
    }
}

// One rank ends in the middle.
void killed() {
    auto group = join_warm(my_rank());
    report("survived", [&] {
        for (int i = 0; i < 100'000; ++i) {
            if (my_rank() == 1 && i == number("step", 20))
                raise(static_cast<int>(number("signal", SIGKILL)));
            allreduce(group, 100'000);
        }
    });
}

// Ranks do different things, and have asked libddp not to look.
void disagreeing() {
    auto group = join(my_rank());
    allreduce(group, 1000);
    report("allreduce", [&] {
        std::vector<float> data(2'000'000, 1);
        group.allreduce(data.data(), my_rank() == 1 ? 900'000 : 2'000'000).wait();
    });
}

// The backend has begun to work when it can start no thread any more.
void threadless() {
    report("joining", [] { join(my_rank(), "first"); });
    module_has_no_threads = true;
    report("joining again", [] { join(my_rank()); });
    module_has_no_threads = false;
}

// Two ranks in one process.
void threads() {
    std::thread other([] { report("joining as rank 1", [] { join(1); }); });
    report("joining as rank 0", [] { join(0); });
    other.join();
}

// Some processes of a job may be none of libddp's.
bool joins() {
    const std::string only = setting("join_only", "");
    return only.empty() || only.find(std::to_string(my_rank())) != std::string::npos;
}

void run(const std::string& name) {
    if (name == "join") {
        report("joining", [] {
            auto group = join(my_rank());
            allreduce(group, 1000);
        });
        int initialised = 0;
        MPI_Initialized(&initialised);
        say(initialised ? "MPI runs" : "MPI was left alone");
        if (number("linger_rank", -1) == my_rank()) nap(number("linger", 0));
    } else if (name == "late") {
        late();
    } else if (name == "aborted") {
        aborted();
    } else if (name == "killed") {
        killed();
    } else if (name == "disagreeing") {
        disagreeing();
    } else if (name == "threadless") {
        threadless();
    } else if (name == "threads") {
        threads();
    }
}

}  // namespace

// The program's own definition stands before the C library's.
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread,
                                                             const pthread_attr_t* how,
                                                             void* (*body)(void*),
                                                             void* data) noexcept {
    static const auto real =
        reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return module_has_no_threads && called_by_module() ? EAGAIN : real(thread, how, body, data);
}

int main(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
        const std::string text = argv[i];
        settings[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    const bool own_mpi = number("level", -1) >= 0;
    int provided = 0;
    if (own_mpi) MPI_Init_thread(&argc, &argv, static_cast<int>(number("level", 0)), &provided);
    if (joins())
        run(argv[1]);
    else
        nap(number("idle_ms", 0));
    if (own_mpi && number("finalize", 1)) MPI_Finalize();
    say("ends");
    return 0;
}
