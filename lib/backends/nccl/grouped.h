// Calls of NCCL of which it carries out all at once. The first failure stands.
#pragma once

#include "backends/nccl/library.h"

namespace libddp::cuda {

class Grouped {
public:
    Grouped() { note(nccl().ncclGroupStart()); }
    void note(ncclResult_t result) {
        if (failure_ == ncclSuccess && result != ncclInProgress) failure_ = result;
    }
    ncclResult_t end() {
        const ncclResult_t result = nccl().ncclGroupEnd();
        return failure_ == ncclSuccess ? result : failure_;
    }

private:
    ncclResult_t failure_ = ncclSuccess;
};

}  // namespace libddp::cuda
