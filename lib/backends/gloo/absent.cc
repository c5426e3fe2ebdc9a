// The room in a build without Gloo (DDP_BUILD_GLOO=OFF).
#include "backends/gloo/transport.h"

namespace libddp {

const ddp_backend* gloo_backend() {
    return nullptr;
}

}  // namespace libddp
