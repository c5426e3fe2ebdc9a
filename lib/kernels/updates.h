// The steps of optimizers, element by element, on CPU memory. Every element gets the same bits
// wherever it lies, and on every instruction set. f32 and f64; otherwise UNSUPPORTED. Gradients are
// multiplied by `scale` first. Buffers may not overlap.
#pragma once

#include <cstddef>

#include "ddp/types.h"
#include "kernels/everywhere.h"

namespace libddp::cpu {

//     d = scale * gradient + decay * value      momentum: b = momentum * b + d
//     value = keep * value - rate * d           with b for d, or with nesterov d + momentum * b
struct SgdStep {
    double rate = 1, momentum = 0, decay = 0, keep = 1, scale = 1;
    bool nesterov = false;
};

// As a device gets it, and back.
using StepNumbers = double[8];
inline void numbers_of(const SgdStep& step, StepNumbers& numbers) {
    const StepNumbers all = {step.rate, step.momentum, step.decay,
                             step.keep, step.scale,    step.nesterov ? 1.0 : 0.0};
    for (std::size_t i = 0; i < 8; ++i) numbers[i] = all[i];
}
LIBDDP_EVERYWHERE SgdStep sgd_step_of(const StepNumbers& n) {
    return {n[0], n[1], n[2], n[3], n[4], n[5] != 0};
}

// buffer: of the momentum; may be null if it is 0.
void sgd_step(void* values, const void* gradients, void* buffer, std::size_t count, ddp_dtype dtype,
              const SgdStep& step);

//     m = m + (1 - beta1) * (scale * gradient - m)      v = beta2 * v + (1 - beta2) * (...)^2
struct AdamStep {
    double beta1 = 0, beta2 = 0, eps = 0, scale = 1;
    double correction1 = 1, root2 = 1;  // 1 - beta1^t, sqrt(1 - beta2^t)
    double rate = 1, decay = 0;
};

inline void numbers_of(const AdamStep& step, StepNumbers& numbers) {
    const StepNumbers all = {step.beta1,       step.beta2, step.eps,  step.scale,
                             step.correction1, step.root2, step.rate, step.decay};
    for (std::size_t i = 0; i < 8; ++i) numbers[i] = all[i];
}
LIBDDP_EVERYWHERE AdamStep adam_step_of(const StepNumbers& n) {
    return {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
}

// AdamW (Loshchilov and Hutter 2019), rounded as PyTorch does:
//     value = value * (1 - rate * decay) - rate / correction1 * (m / (sqrt(v) / root2 + eps))
void adamw_step(void* values, const void* gradients, void* m, void* v, std::size_t count,
                ddp_dtype dtype, const AdamStep& step);

// LAMB (You et al. 2020): out = m / correction1 / (sqrt(v) / root2 + eps) + decay * value.
// gradients: NULL if the moments have them already.
void lamb_direction(void* out, const void* values, const void* gradients, void* m, void* v,
                    std::size_t count, ddp_dtype dtype, const AdamStep& step);

// Muon (Jordan et al. 2024): b = momentum * b + (1 - momentum) * scale * gradient, and out = b, or
// with nesterov the same mean of the gradient and the new b.
struct MuonStep {
    double momentum = 0, scale = 1;
    bool nesterov = false;
};
void muon_direction(void* out, const void* gradients, void* buffer, std::size_t count,
                    ddp_dtype dtype, const MuonStep& step);

// A matrix, row by row, becomes nearly the closest one whose singular values are all 1, by
// Newton-Schulz iterations (the same). eps: the least norm by which it is divided.
void orthogonalize(void* matrix, std::size_t rows, std::size_t columns, ddp_dtype dtype, int steps,
                   double eps);

}  // namespace libddp::cpu
