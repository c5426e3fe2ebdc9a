// In the place of cuda/, where ddp-bench is built without CUDA.
#include <stdexcept>

#include "benchmarks.h"

namespace bench {

std::vector<Row> run_transfer(const Options&) {
    throw std::runtime_error("transfer needs a ddp-bench that was built with the CUDA module (DDP_BUILD_CUDA)");
}

}  // namespace bench
