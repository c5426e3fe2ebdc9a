// The process that the tests kill: opens a store, does one thing, says so, and sleeps until it is
// killed.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "rendezvous/store.h"

namespace {

volatile std::sig_atomic_t ended = 0;

// Registered first, it runs after the exit handlers of all libraries, until it is asked for its
// end.
void linger() {
    std::printf("late\n");
    std::fflush(stdout);
    for (int i = 0; i < 5000 && !ended; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    if (std::string_view(argv[2]) == "exit") {
        std::signal(SIGTERM, [](int) { ended = 1; });
        std::atexit(linger);
    }
    const std::string uri = argv[1];
    const std::string what = argv[2];
    alarm(100);  // should the test die first
    try {
        if (what == "few") {
            const rlimit limit{1024, 1024};
            setrlimit(RLIMIT_NOFILE, &limit);
        }
        const bool serves = what == "serve" || what == "exit" || what == "few";
        auto store = libddp::open_store({uri, serves, 20'000, ""});
        if (serves) std::printf("%d\n", store->port());
        if (what == "exit") {
            static const auto& never_freed = *new std::shared_ptr<libddp::Store>(store);
            (void)never_freed;
            std::exit(0);
        }
        if (what == "will") {
            store->set_will("will/executed", "gone");
            store->set_will("will/late", "too late");
            store->set_will("will/removed", "never");
            store->remove_will("will/removed");
            store->set("child/ready", "yes");
        }
        if (what == "add") store->add("children", 1);
        std::printf("ready\n");
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::seconds(90));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        return 1;
    }
    return 0;
}
