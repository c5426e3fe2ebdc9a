// Compares the Gloo backend's algorithms: medians of in-place f32 allreduces, every rank a process
// of its own on this machine. Arguments: world sizes (default 2 4). Prints microseconds; what
// counts is the ratio to the ring beside it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "unit/backend/fake_host.h"

namespace {

using namespace libddp::testing_backend;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSizes[] = {64, 1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 26 << 20};
constexpr const char* kAlgorithms[] = {"ring", "bcube", "direct"};

double one_us(Rank& rank, std::vector<float>& data) {
    if (rank.barrier() != DDP_OK) return -1;
    const auto begin = Clock::now();
    if (rank.allreduce(data) != DDP_OK) return -1;
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

// The algorithms take turns, so that the machine's mood hits them alike.
int run_rank(const std::string& folder, int number, int world) {
    std::vector<std::unique_ptr<FolderStore>> stores;
    std::vector<std::unique_ptr<Rank>> ranks;
    for (const char* algorithm : kAlgorithms) {
        const std::string place = folder + "/" + algorithm;
        std::filesystem::create_directories(place);
        stores.push_back(std::make_unique<FolderStore>(place));
        ranks.push_back(std::make_unique<Rank>(*stores.back(), number, world,
                                               std::string("algorithm=") + algorithm));
        if (ranks.back()->status != DDP_OK)
            return std::fprintf(stderr, "%s\n", ranks.back()->failure.message), 1;
    }
    for (std::size_t bytes : kSizes) {
        double us[std::size(kAlgorithms)];
        std::vector<double> times[std::size(kAlgorithms)];
        std::vector<float> data(bytes / sizeof(float), 1);
        const int repeats = bytes <= 65536 ? 300 : bytes <= 4 << 20 ? 60 : 15;
        for (int i = 0; i < repeats; ++i)
            for (std::size_t a = 0; a < std::size(kAlgorithms); ++a)
                times[a].push_back(one_us(*ranks[a], data));
        for (std::size_t a = 0; a < std::size(kAlgorithms); ++a) us[a] = median(times[a]);
        if (number != 0) continue;
        std::printf("%5d %10zu", world, bytes);
        for (double t : us) std::printf(" %10.0f", t);
        std::printf("   bcube/ring %.2f  direct/ring %.2f\n", us[1] / us[0], us[2] / us[0]);
        std::fflush(stdout);
    }
    return 0;
}

void run_world(int world) {
    char folder[] = "/tmp/gloo_bench.XXXXXX";
    if (!mkdtemp(folder)) return std::perror("mkdtemp");
    for (int rank = 0; rank < world; ++rank)
        if (fork() == 0) _exit(run_rank(folder, rank, world));
    while (wait(nullptr) > 0) {
    }
    std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
    std::printf("world      bytes       ring      bcube     direct\n");
    std::fflush(stdout);
    std::vector<int> worlds;
    for (int i = 1; i < argc; ++i) worlds.push_back(std::atoi(argv[i]));
    if (worlds.empty()) worlds = {2, 4};
    for (int world : worlds) run_world(world);
}
