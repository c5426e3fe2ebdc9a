// Calls of the public functions in any order, on a group of one rank.
#include "fuzz/program.h"

namespace fuzz::api {
namespace {

ddp_group* create_group() {
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    options.timeout_ms = 5000;
    ddp_group* group = nullptr;
    check(ddp_group_create(&options, &group, nullptr) == DDP_OK, "there is no group of one rank");
    return group;
}

}  // namespace

DDP_FUZZ_TARGET(api, input) {
    constexpr int kMostCalls = 60;
    static ddp_group* group = create_group();
    Reader bytes(input);
    {
        Program program(bytes, group);
        for (int calls = 0; calls < kMostCalls && !bytes.empty(); ++calls) program.step();
    }
    // Most inputs leave it as it was.
    if (ddp_group_status(group, nullptr) == DDP_OK) return;
    ddp_group_free(group);
    group = create_group();
}

}  // namespace fuzz::api
