// A collective in a world of one.
#pragma once

#include <cstring>

#include "ddp/backend.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::backend {

inline void run_alone(const ddp_collective& c) {
    if (c.kind == DDP_COLLECTIVE_BARRIER || c.count == 0) return;
    const bool reduces =
        c.kind == DDP_COLLECTIVE_ALLREDUCE || c.kind == DDP_COLLECTIVE_REDUCE_SCATTER;
    if (reduces)
        cpu::reduce(c.recv, &c.send, 1, c.count, c.dtype, c.op, c.scale);
    else if (c.send != c.recv)
        std::memcpy(c.recv, c.send, c.count * dtype_size(c.dtype));
    if (c.take && c.kind == DDP_COLLECTIVE_ALLREDUCE) take_share(c, c.recv, 0, 1);
}

}  // namespace libddp::backend
