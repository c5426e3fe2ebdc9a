// One rank that reduces until something breaks. Arguments: folder of the store, rank, world,
// backend options. Touches FOLDER/going.RANK once it runs, and exits with 100 - status: 110 for
// RANK_FAILED, 107 for TIMEOUT, and so on; 99 says that SIGPIPE was raised in the process.
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "unit/backend/fake_host.h"

int main(int argc, char** argv) {
    using namespace libddp::testing_backend;
    if (argc != 5) return 2;
    struct sigaction action {};
    action.sa_handler = [](int) { _exit(99); };
    sigaction(SIGPIPE, &action, nullptr);

    const std::string folder = argv[1];
    FolderStore store(folder);
    Rank rank(store, std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
    std::vector<float> data(200000, 1);
    for (int step = 0; rank.status == DDP_OK; ++step) {
        if (step == 5) std::ofstream(folder + "/going." + argv[2]) << "yes";
        if (rank.match("step " + std::to_string(step)) == DDP_OK) rank.allreduce(data);
    }
    std::ofstream(folder + "/end." + argv[2]) << rank.failure.message;
    return 100 - rank.status;
}
