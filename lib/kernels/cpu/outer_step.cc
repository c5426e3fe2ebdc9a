// The step of an outer optimizer, on averages and outer parameters.
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cpu {
namespace {

// Moves from the average instead of from the old outer parameter, so that a move of the whole
// difference gives the average itself and not that rounded twice. The compiler makes SIMD code of
// it because the buffers are different ones.
template <class Number>
void step_numbers(Number* __restrict values, Number* __restrict outer, Number* __restrict momentum,
                  std::size_t count, const OuterStep& step) {
    const auto [nesterov, rate, decay, inner_rate] = step;
    for (std::size_t i = 0; i < count; ++i) {
        const double average = values[i];
        const double difference = outer[i] - average;
        double direction = difference;
        if (momentum) {
            const double kept = decay * momentum[i];
            const double next = kept + difference / inner_rate;
            direction += nesterov ? decay * next : inner_rate * kept;
            momentum[i] = static_cast<Number>(next);
        }
        values[i] = outer[i] = static_cast<Number>(average + (difference - rate * direction));
    }
}

template <class Number>
void subtract_numbers(void* values, const void* from, std::size_t count) {
    auto* const v = static_cast<Number*>(values);
    const auto* const f = static_cast<const Number*>(from);
    for (std::size_t i = 0; i < count; ++i) v[i] = f[i] - v[i];
}

template <class Number>
void mix_numbers(void* values, const void* other, std::size_t count, double weight) {
    auto* const v = static_cast<Number*>(values);
    const auto* const o = static_cast<const Number*>(other);
    for (std::size_t i = 0; i < count; ++i)
        v[i] = static_cast<Number>(weight * v[i] + (1 - weight) * o[i]);
}

template <class Number>
void step_as(void* values, void* outer, void* momentum, std::size_t count, const OuterStep& step) {
    step_numbers(static_cast<Number*>(values), static_cast<Number*>(outer),
                 static_cast<Number*>(momentum), count, step);
}

}  // namespace

void outer_step(void* values, void* outer, void* momentum, std::size_t count, ddp_dtype dtype,
                const OuterStep& step) {
    if (dtype == DDP_F32) return step_as<float>(values, outer, momentum, count, step);
    if (dtype == DDP_F64) return step_as<double>(values, outer, momentum, count, step);
    fail(DDP_ERROR_UNSUPPORTED, "no outer step of ", dtype_name(dtype));
}

void subtract_from(void* values, const void* from, std::size_t count, ddp_dtype dtype) {
    if (dtype == DDP_F32) return subtract_numbers<float>(values, from, count);
    if (dtype == DDP_F64) return subtract_numbers<double>(values, from, count);
    fail(DDP_ERROR_UNSUPPORTED, "no outer gradient of ", dtype_name(dtype));
}

void mix(void* values, const void* other, std::size_t count, ddp_dtype dtype, double weight) {
    if (dtype == DDP_F32) return mix_numbers<float>(values, other, count, weight);
    if (dtype == DDP_F64) return mix_numbers<double>(values, other, count, weight);
    fail(DDP_ERROR_UNSUPPORTED, "no mixture of ", dtype_name(dtype));
}

}  // namespace libddp::cpu
