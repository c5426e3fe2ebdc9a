// The benchmarks. Each but run_transfer is collective: all ranks run it, and all get the same rows.
#pragma once

#include <vector>

#include "handles.h"
#include "options.h"
#include "report.h"

namespace bench {

std::vector<Row> run_allreduce(ddp_group* group, const Options& options);
std::vector<Row> run_replay(ddp_group* group, const Options& options);
std::vector<Row> run_grad_ready(ddp_group* group, const Options& options);
// The descriptors and threads that this process has, and when.
struct Holding {
    double at_ms;
    double descriptors;
    double threads;
    static Holding now();
};
// `before`: the group was joined. On one host.
std::vector<Row> run_join(ddp_group* group, const Options& options, const Holding& before);
// In a ddp-bench that was built with CUDA.
std::vector<Row> run_replay_on_gpu(ddp_group* group, const Options& options);
// On this process's own GPU.
std::vector<Row> run_transfer(const Options& options);

}  // namespace bench
