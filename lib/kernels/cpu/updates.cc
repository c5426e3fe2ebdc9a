// The steps of optimizers, compiled for every instruction set and chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/updates.cc"
// The order of these three matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"
// clang-format on

#include "kernels/updates.h"

#include "kernels/dtype.h"
#include "util/error.h"

#ifndef LIBDDP_UPDATES_SHAPE
#define LIBDDP_UPDATES_SHAPE
namespace libddp::cpu {

// The buffers of a step. first, second: of the optimizer's state.
struct Update {
    void* values;
    const void* gradients;
    void *first, *second;
    std::size_t count;
    ddp_dtype dtype;
    void* out;
};

}  // namespace libddp::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

template <class T>
T* as(void* memory) {
    return static_cast<T*>(memory);
}

// A number for all lanes.
template <class D>
HWY_INLINE hn::Vec<D> all(D d, double number) {
    return hn::Set(d, static_cast<hn::TFromD<D>>(number));
}

template <class T>
void sgd_as(const Update& u, const SgdStep& step) {
    T* const values = as<T>(u.values);
    T* const buffer = as<T>(u.first);
    const T* const gradients = static_cast<const T*>(u.gradients);
    for_each_vector<T>(0, u.count, [=](auto d, std::size_t i) {
        const auto value = hn::LoadU(d, values + i);
        auto direction = hn::Mul(hn::LoadU(d, gradients + i), all(d, step.scale));
        direction = hn::Add(direction, hn::Mul(value, all(d, step.decay)));
        if (step.momentum != 0) {
            const auto momentum = all(d, step.momentum);
            const auto next = hn::Add(hn::Mul(hn::LoadU(d, buffer + i), momentum), direction);
            hn::StoreU(next, d, buffer + i);
            direction = step.nesterov ? hn::Add(direction, hn::Mul(next, momentum)) : next;
        }
        hn::StoreU(
            hn::Sub(hn::Mul(value, all(d, step.keep)), hn::Mul(direction, all(d, step.rate))), d,
            values + i);
    });
}

// The moments of these elements after their gradients.
template <class D, class T>
HWY_INLINE void take_gradient(D d, const T* gradient, T* m, T* v, const AdamStep& step) {
    const auto g = hn::Mul(hn::LoadU(d, gradient), all(d, step.scale));
    const auto m0 = hn::LoadU(d, m);
    hn::StoreU(hn::Add(m0, hn::Mul(hn::Sub(g, m0), all(d, 1 - step.beta1))), d, m);
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, v), all(d, step.beta2)),
                       hn::Mul(hn::Mul(g, g), all(d, 1 - step.beta2))),
               d, v);
}

template <class D, class T>
HWY_INLINE hn::Vec<D> denominator(D d, const T* v, const AdamStep& step) {
    return hn::Add(hn::Div(hn::Sqrt(hn::LoadU(d, v)), all(d, step.root2)), all(d, step.eps));
}

template <class T>
void adamw_as(const Update& u, const AdamStep& step) {
    T* const values = as<T>(u.values);
    T *const m = as<T>(u.first), *const v = as<T>(u.second);
    const T* const gradients = static_cast<const T*>(u.gradients);
    const double keep = 1 - step.rate * step.decay, size = step.rate / step.correction1;
    for_each_vector<T>(0, u.count, [=](auto d, std::size_t i) {
        take_gradient(d, gradients + i, m + i, v + i, step);
        const auto value = hn::Mul(hn::LoadU(d, values + i), all(d, keep));
        const auto ratio = hn::Div(hn::LoadU(d, m + i), denominator(d, v + i, step));
        hn::StoreU(hn::Sub(value, hn::Mul(ratio, all(d, size))), d, values + i);
    });
}

template <class T>
void lamb_as(const Update& u, const AdamStep& step) {
    const T* const values = as<T>(u.values);
    T *const m = as<T>(u.first), *const v = as<T>(u.second), *const out = as<T>(u.out);
    const T* const gradients = static_cast<const T*>(u.gradients);
    for_each_vector<T>(0, u.count, [=](auto d, std::size_t i) {
        if (gradients) take_gradient(d, gradients + i, m + i, v + i, step);
        const auto moment = hn::Div(hn::LoadU(d, m + i), all(d, step.correction1));
        const auto decay = hn::Mul(hn::LoadU(d, values + i), all(d, step.decay));
        hn::StoreU(hn::Add(hn::Div(moment, denominator(d, v + i, step)), decay), d, out + i);
    });
}

template <class T>
void muon_as(const Update& u, const MuonStep& step) {
    T *const buffer = as<T>(u.first), *const out = as<T>(u.out);
    const T* const gradients = static_cast<const T*>(u.gradients);
    for_each_vector<T>(0, u.count, [=](auto d, std::size_t i) {
        const auto g = hn::Mul(hn::LoadU(d, gradients + i), all(d, step.scale));
        const auto old = hn::LoadU(d, buffer + i);
        const auto next = hn::Add(old, hn::Mul(hn::Sub(g, old), all(d, 1 - step.momentum)));
        hn::StoreU(next, d, buffer + i);
        const auto ahead = hn::Add(g, hn::Mul(hn::Sub(next, g), all(d, step.momentum)));
        hn::StoreU(step.nesterov ? ahead : next, d, out + i);
    });
}

void sgd_target(const Update& u, const SgdStep& step) {
    u.dtype == DDP_F64 ? sgd_as<double>(u, step) : sgd_as<float>(u, step);
}
void adamw_target(const Update& u, const AdamStep& step) {
    u.dtype == DDP_F64 ? adamw_as<double>(u, step) : adamw_as<float>(u, step);
}

void lamb_target(const Update& u, const AdamStep& step) {
    u.dtype == DDP_F64 ? lamb_as<double>(u, step) : lamb_as<float>(u, step);
}
void muon_target(const Update& u, const MuonStep& step) {
    u.dtype == DDP_F64 ? muon_as<double>(u, step) : muon_as<float>(u, step);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {
namespace {

HWY_EXPORT(sgd_target);
HWY_EXPORT(adamw_target);
HWY_EXPORT(lamb_target);
HWY_EXPORT(muon_target);

void require_updatable(ddp_dtype dtype) {
    if (dtype != DDP_F32 && dtype != DDP_F64)
        fail(DDP_ERROR_UNSUPPORTED, "no optimizer steps numbers of ", dtype_name(dtype));
}

}  // namespace

void sgd_step(void* values, const void* gradients, void* buffer, std::size_t count, ddp_dtype dtype,
              const SgdStep& step) {
    require_updatable(dtype);
    HWY_DYNAMIC_DISPATCH(sgd_target)
    ({values, gradients, buffer, nullptr, count, dtype, nullptr}, step);
}

void adamw_step(void* values, const void* gradients, void* m, void* v, std::size_t count,
                ddp_dtype dtype, const AdamStep& step) {
    require_updatable(dtype);
    HWY_DYNAMIC_DISPATCH(adamw_target)({values, gradients, m, v, count, dtype, nullptr}, step);
}

void lamb_direction(void* out, const void* values, const void* gradients, void* m, void* v,
                    std::size_t count, ddp_dtype dtype, const AdamStep& step) {
    require_updatable(dtype);
    HWY_DYNAMIC_DISPATCH(lamb_target)
    ({const_cast<void*>(values), gradients, m, v, count, dtype, out}, step);
}

void muon_direction(void* out, const void* gradients, void* buffer, std::size_t count,
                    ddp_dtype dtype, const MuonStep& step) {
    require_updatable(dtype);
    HWY_DYNAMIC_DISPATCH(muon_target)
    ({nullptr, gradients, buffer, nullptr, count, dtype, out}, step);
}

}  // namespace libddp::cpu
#endif
