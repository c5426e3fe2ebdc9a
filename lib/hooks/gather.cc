#include "hooks/gather.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/dtype.h"
#include "device/kernels.h"
#include "hooks/allreduce.h"
#include "hooks/default_arithmetic.h"
#include "hooks/plain_part.h"
#include "util/error.h"

namespace libddp {
namespace {

// Elements that are added up at a time: few enough to stay in the L1 cache while every rank's share is added.
constexpr std::size_t kChunk = 2048;

template <class Real>
constexpr ddp_dtype kDtype = std::is_same_v<Real, double> ? DDP_F64 : DDP_F32;

constexpr std::size_t align_to_8(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

// Without an early exit, which would keep the compiler from using vectors.
template <class Real>
bool all_finite(const Real* x, std::size_t count) {
    using Flags = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
    Flags bad = 0;
    for (std::size_t i = 0; i < count; ++i) bad |= !(std::fabs(x[i]) <= std::numeric_limits<Real>::max());
    return bad == 0;
}

}  // namespace

// A parameter that is packed.
struct GatherHook::Part {
    void* gradient;
    std::size_t count;
    Kept* residual;          // null without feedback
    std::size_t input = 0;   // where its elements begin in Job::input
    std::size_t packed = 0;  // where its bytes begin in what a rank sends
};

// A rank sends a byte for each part that says whether it holds a NaN or an infinity, and then the parts.
struct GatherHook::Job {
    std::size_t rank = 0, world = 1;
    std::vector<Part> parts;
    PlainPart plain;         // parameters that are not packed
    std::size_t size = 0;    // bytes that a rank sends
    ScratchMemory gathered;  // what the ranks send, one after another
    ScratchMemory input;     // gradients as Real, with their residuals added

    const std::byte* from(std::size_t other) const { return gathered.get() + other * size; }
    std::byte* mine() const { return gathered.get() + rank * size; }

    bool finite(std::size_t part) const {
        for (std::size_t r = 0; r < world; ++r)
            if (from(r)[part] != std::byte{0}) return false;
        return true;
    }
};

bool GatherHook::packs(const BucketTensor& tensor) const {
    return tensor.count > 0 && tensor.count >= setup_.min_elements;
}

WorkPtr GatherHook::reduce(ddp_group& group, ddp_bucket& bucket) {
    const bool any = std::any_of(bucket.tensors.begin(), bucket.tensors.end(),
                                 [this](const BucketTensor& tensor) { return packs(tensor); });
    if (!is_real(bucket.dtype) || !any) return allreduce(group, bucket);
    return bucket.dtype == DDP_F64 ? start<double>(*group.impl, bucket) : start<float>(*group.impl, bucket);
}

template <class Real>
WorkPtr GatherHook::start(Group& group, ddp_bucket& bucket) {
    const std::shared_ptr<Job> job = jobs_.take(bucket.index);
    job->rank = static_cast<std::size_t>(group.rank());
    job->world = static_cast<std::size_t>(group.world());
    lay_out<Real>(bucket, *job);
    pack<Real>(bucket, *job);
    WorkPtr last = group.submit({DDP_COLLECTIVE_ALLGATHER, nullptr, job->gathered.get(), job->size, DDP_U8}, job);
    if (const WorkPtr plain = job->plain.submit(group, bucket, job)) last = plain;
    return last->then(
        [this, job, &bucket]() -> WorkPtr {
            unpack<Real>(bucket, *job);
            job->plain.give_back();
            return nullptr;
        },
        true);
}

template <class Real>
void GatherHook::lay_out(const ddp_bucket& bucket, Job& job) {
    job.parts.clear();
    job.plain.clear();
    for (const auto& tensor : bucket.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        if (packs(tensor)) {
            // An absent gradient sends nothing of what was left out of earlier ones: perhaps nobody takes the result.
            const bool feeds_back = setup_.feedback && !tensor.absent;
            job.parts.push_back({tensor.gradient, count, feeds_back ? &residual<Real>(tensor) : nullptr});
        } else {
            job.plain.add(tensor.gradient, count);
        }
    }
    std::size_t input = 0;
    job.size = align_to_8(job.parts.size());
    for (auto& part : job.parts) {
        part.input = input;
        part.packed = job.size;
        input += part.count;
        job.size += align_to_8(codec<Real>().packed_size(part.count));
    }
    job.gathered.require(job.size * job.world);
    if (setup_.feedback || bucket.dtype != kDtype<Real>) job.input.require(input * sizeof(Real));
}

// The gradient as Real, and what earlier steps left out of it.
template <class Real>
const Real* GatherHook::input(const ddp_bucket& bucket, const Job& job, const Part& part) {
    const bool same = bucket.dtype == kDtype<Real>;
    const auto* gradient = static_cast<const Real*>(part.gradient);
    if (same && !part.residual) return gradient;
    Real* x = reinterpret_cast<Real*>(job.input.get()) + part.input;
    if (!same) {
        cpu::convert(x, kDtype<Real>, part.gradient, bucket.dtype, part.count);
        gradient = x;
    }
    if (part.residual) {
        const auto* left_out = reinterpret_cast<const Real*>(part.residual->memory.get());
        for (std::size_t i = 0; i < part.count; ++i) x[i] = gradient[i] + left_out[i];
    }
    return x;
}

template <class Real>
void GatherHook::pack(const ddp_bucket& bucket, const Job& job) const {
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
        const Part& part = job.parts[i];
        const Real* x = input<Real>(bucket, job, part);
        const bool finite = all_finite(x, part.count);
        job.mine()[i] = std::byte{!finite};
        if (finite) codec<Real>().pack(x, part.count, job.mine() + part.packed);
    }
}

template <class Real>
void GatherHook::unpack(const ddp_bucket& bucket, const Job& job) const {
    const DefaultArithmeticScope arithmetic;
    Real values[kChunk];
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
        const Part& part = job.parts[i];
        const bool finite = job.finite(i);
        for (std::size_t begin = 0; begin < part.count; begin += kChunk) {
            const std::size_t n = std::min(kChunk, part.count - begin);
            if (finite) {
                add_up(bucket, job, part, begin, n, values);
                if (part.residual) keep<Real>(job, part, begin, n);
            } else {
                std::fill_n(values, n, std::numeric_limits<Real>::quiet_NaN());
            }
            auto* out = static_cast<std::byte*>(part.gradient) + begin * dtype_size(bucket.dtype);
            cpu::convert(out, bucket.dtype, values, kDtype<Real>, n);
        }
    }
}

// The sum in the order of the ranks, or the mean.
template <class Real>
void GatherHook::add_up(const ddp_bucket& bucket, const Job& job, const Part& part, std::size_t begin, std::size_t n,
                        Real* sum) const {
    std::fill_n(sum, n, Real{0});
    for (std::size_t r = 0; r < job.world; ++r)
        codec<Real>().add(job.from(r) + part.packed, part.count, begin, n, Real{1}, sum);
    if (bucket.op() != DDP_AVG) return;
    const Real scale = static_cast<Real>(1.0 / static_cast<double>(job.world));
    for (std::size_t i = 0; i < n; ++i) sum[i] *= scale;
}

// What this rank's bytes lack.
template <class Real>
void GatherHook::keep(const Job& job, const Part& part, std::size_t begin, std::size_t n) const {
    const Real* x = reinterpret_cast<const Real*>(job.input.get()) + part.input + begin;
    Real* left_out = reinterpret_cast<Real*>(part.residual->memory.get()) + begin;
    std::copy_n(x, n, left_out);
    codec<Real>().add(job.mine() + part.packed, part.count, begin, n, Real{-1}, left_out);
}

// Zeros at first. In another precision when the hook has been wrapped by one that casts.
template <class Real>
Kept& GatherHook::residual(const BucketTensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.count);
    Kept& kept = residuals_[tensor.param];
    if (!kept.memory) kept = Kept::zeros(kDtype<Real>, count, 1);
    if (kept.rows != count)
        fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state that was loaded has ", kept.rows,
             " elements for parameter ", tensor.param, ", whose gradient has ", count);
    kept.convert_to(kDtype<Real>);
    return kept;
}

void GatherHook::save(HookState& state) const {
    for (const auto& [param, kept] : residuals_)
        state.arrays.push_back({param,
                                HookState::kError,
                                kept.dtype,
                                {static_cast<std::int64_t>(kept.rows)},
                                false,
                                kept.memory.get(),
                                kept.bytes()});
}

void GatherHook::load(const HookState& state) {
    std::map<ddp_param, Kept> loaded;
    for (const auto& array : state.arrays) {
        const bool known = setup_.feedback && array.key == HookState::kError && array.param >= 0;
        if (!known)
            fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state has an array '", array.key,
                 "', which this hook does not keep");
        if ((array.dtype != DDP_F32 && array.dtype != DDP_F64) || array.shape.size() != 1)
            fail(DDP_ERROR_INVALID_ARGUMENT, name(), ": the state's array '", HookState::kError, "' of parameter ",
                 array.param, " is not a list of f32 or f64");
        loaded[array.param].copy_from(array.data, array.dtype, array.bytes / dtype_size(array.dtype), 1);
    }
    residuals_ = std::move(loaded);
}

void require_min_elements(std::int64_t min_elements, const char* call) {
    if (min_elements < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": min_elements is ", min_elements,
             "; it must be at least 0: parameters with fewer elements are not compressed");
}

}  // namespace libddp
