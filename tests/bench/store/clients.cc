// The program of tests/bench/performance/store.py. A store, or a part of its clients, each on a
// thread of its own:
//
//     bench_clients serve                        prints the store's address, and ends with its standard input
//     bench_clients join STORE FIRST COUNT ALL   clients FIRST to FIRST + COUNT - 1 of ALL: waits for a line on standard input, then joins,
//                                                meets all others, and waits for a key that the
//                                                last client sets after that.
//                                                Prints milliseconds since the line, of the slowest
//                                                client
#include <ddp/ddp.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "handles.h"
#include "measure.h"

namespace {

constexpr std::int64_t kTimeoutMs = 120'000;

// A descriptor for each connection, and a few for each client.
void raise_descriptors() {
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// The most memory that this process has had.
long peak_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("VmHWM:", 0) == 0) return std::atol(line.c_str() + 6);
    return 0;
}

bench::Store open(const std::string& uri, bool is_server) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri.c_str();
    options.is_server = is_server ? 1 : 0;
    options.timeout_ms = kTimeoutMs;
    ddp_store* store = nullptr;
    bench::Result result;
    result.check(ddp_store_create(&options, &store, result));
    return bench::Store(store);
}

int serve() {
    const bench::Store store = open("tcp://127.0.0.1:0", true);
    std::cout << "tcp://127.0.0.1:" << ddp_store_port(store.get()) << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << peak_kib() << std::endl;
    return 0;
}

// When the slowest of this process's clients had come so far.
struct Moments {
    std::atomic<double> joined{0}, met{0}, heard{0};

    static void at(std::atomic<double>& moment) {
        const double now = bench::now_ms();
        double before = moment.load();
        while (before < now && !moment.compare_exchange_weak(before, now)) {
        }
    }
};

void meet(ddp_store* store, const char* name, int all) {
    bench::Result result;
    int64_t here = 0;
    const std::string count = std::string(name) + "/here";
    result.check(ddp_store_add(store, count.c_str(), 1, &here, result));
    if (here == all) result.check(ddp_store_set(store, name, "", 0, result));
    result.check(ddp_store_wait(store, &name, 1, kTimeoutMs, result));
}

void be_a_client(const std::string& uri, int number, int all, Moments& moments) {
    const bench::Store owned = open(uri, false);
    ddp_store* const store = owned.get();
    bench::Result result;
    const std::string key = "client/" + std::to_string(number);
    result.check(ddp_store_set(store, key.c_str(), key.data(), key.size(), result));
    Moments::at(moments.joined);
    meet(store, "all", all);
    Moments::at(moments.met);
    if (number == all - 1) result.check(ddp_store_set(store, "go", "on", 2, result));
    void* value = nullptr;
    std::size_t size = 0;
    result.check(ddp_store_get(store, "go", kTimeoutMs, &value, &size, result));
    Moments::at(moments.heard);
    ddp_free(value);
    meet(store, "end", all);
}

int join(const std::string& uri, int first, int count, int all) {
    Moments moments;
    std::latch ready(count), go(1);
    std::atomic<int> failed{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < count; ++i)
        clients.emplace_back([&, number = first + i] {
            ready.count_down();
            go.wait();
            try {
                be_a_client(uri, number, all, moments);
            } catch (const std::exception& error) {
                if (failed++ == 0) std::fprintf(stderr, "client %d: %s\n", number, error.what());
            }
        });
    ready.wait();
    std::cout << "ready" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    const double begin = bench::now_ms();
    go.count_down();
    for (std::thread& client : clients) client.join();
    if (failed > 0) return 1;
    std::printf("{\"joined_ms\": %.1f, \"met_ms\": %.1f, \"heard_ms\": %.1f}\n",
                moments.joined - begin, moments.met - begin, moments.heard - begin);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        raise_descriptors();
        const std::string what = argc > 1 ? argv[1] : "";
        if (what == "serve" && argc == 2) return serve();
        if (what == "join" && argc == 6)
            return join(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]));
        std::fprintf(stderr, "usage: bench_clients serve | join STORE FIRST COUNT ALL\n");
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_clients: %s\n", error.what());
        return 1;
    }
}
