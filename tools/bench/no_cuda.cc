// In the place of cuda/, where ddp-bench is built without CUDA.
#include <stdexcept>

#include "benchmarks.h"

namespace bench {

std::vector<Row> run_transfer(const Options&) {
    throw std::runtime_error(
        "transfer needs a ddp-bench that was built with the CUDA module (DDP_BUILD_CUDA)");
}

std::vector<Row> run_replay_on_gpu(ddp_group*, const Options&) {
    throw std::runtime_error(
        "--device needs a ddp-bench that was built with the CUDA module (DDP_BUILD_CUDA)");
}

}  // namespace bench
