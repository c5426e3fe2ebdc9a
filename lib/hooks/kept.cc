#include "hooks/kept.h"

#include <cstring>
#include <utility>
#include <vector>

#include "device/host_copy.h"
#include "device/memory.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp {

std::size_t Kept::bytes() const {
    return count() * dtype_size(dtype);
}

Kept Kept::zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns, StreamPtr home) {
    Kept kept{dtype, rows, columns, nullptr, std::move(home)};
    kept.memory = kept.home ? kept.home->allocate(kept.bytes()) : allocate_zeroed(kept.bytes());
    return kept;
}

Kept Kept::loaded(const HookState::Array& array, HostCopies* copies) {
    Kept kept = zeros(array.dtype, array.bytes / dtype_size(array.dtype), 1, array.home);
    if (kept.home)
        copies->in(*kept.home, kept.memory.get(), array.data, array.bytes);
    else
        std::memcpy(kept.memory.get(), array.data, array.bytes);
    return kept;
}

bool Kept::convert_to(ddp_dtype wanted) {
    if (dtype == wanted) return false;
    Kept other = zeros(wanted, rows, columns, home);
    if (home)
        on_device::transfer(*home, {{other.memory.get(), memory.get(), count()}}, dtype, wanted, 1);
    else
        cpu::convert(other.memory.get(), wanted, memory.get(), dtype, count());
    *this = std::move(other);
    return true;
}

void Kept::bring_to(const StreamPtr& wanted, HostCopies& copies) {
    Kept there = zeros(dtype, rows, columns, wanted);
    copies.in(*wanted, there.memory.get(), memory.get(), bytes());
    *this = std::move(there);
}

void Kept::separate() {
    Kept own = zeros(dtype, rows, columns, home);
    transfer(home, {{own.memory.get(), memory.get(), count()}}, dtype);
    *this = std::move(own);
}

std::string shape_text(const HookState::Array& array) {
    std::string text;
    for (const std::int64_t extent : array.shape) text += str(text.empty() ? "" : " x ", extent);
    return str(text, " of ", dtype_name(array.dtype));
}

Kept& ErrorFeedback::of(std::int32_t param, std::size_t count, ddp_dtype dtype,
                        const StreamPtr& home, bool* moved) {
    Kept& kept = errors_[param];
    if (!kept.memory) {
        kept = Kept::zeros(dtype, count, 1, home);
        *moved = true;
    }
    if (kept.rows != count)
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state that was loaded has ", kept.rows,
             " elements of ", key_, " for parameter ", param, ", whose gradient has ", count);
    if (kept.convert_to(dtype)) *moved = true;
    return kept;
}

std::byte* ErrorFeedback::of(const ddp_bucket& bucket, const BucketTensor& tensor) {
    bool moved = false;
    const Kept& error = of(tensor.param, static_cast<std::size_t>(tensor.count),
                           compute_dtype(bucket.dtype), bucket.home, &moved);
    // the memory is of that stream
    if (moved && bucket.stream) bucket.stream->wait(*bucket.home->record());
    return error.memory.get();
}

void ErrorFeedback::separate() {
    // All are found first: the last one of a block looks alone when the others have left it.
    std::vector<Kept*> shared;
    for (auto& [param, error] : errors_)
        if (error.memory.use_count() > 1) shared.push_back(&error);
    for (Kept* error : shared) error->separate();
}

void ErrorFeedback::save(HookState& state) const {
    for (const auto& [param, error] : errors_)
        state.arrays.push_back({param,
                                key_,
                                error.dtype,
                                {static_cast<std::int64_t>(error.rows)},
                                false,
                                error.memory.get(),
                                error.bytes(),
                                error.home});
}

// The core has seen that `bytes` is what dtype and shape say.
std::map<std::int32_t, Kept> ErrorFeedback::read(const HookState& state) const {
    std::map<std::int32_t, Kept> errors;
    for (const auto& array : state.arrays) {
        if (array.key != key_) continue;
        const auto refuse = [&](const auto&... why) {
            fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state's array '", array.key,
                 "' of parameter ", array.param, " has ", why...);
        };
        if (array.param < 0 || array.shape.size() != 1 || array.shape[0] <= 0 ||
            (array.dtype != DDP_F32 && array.dtype != DDP_F64))
            refuse("shape ", shape_text(array),
                   "; it should be one element of f32 or f64 for each of the parameter");
        const auto known = errors_.find(array.param);
        if (known != errors_.end() &&
            known->second.rows != static_cast<std::size_t>(array.shape[0]))
            refuse(array.shape[0], " elements; the parameter has ", known->second.rows);
        errors[array.param] = Kept::loaded(array, state.copies.get());
    }
    return errors;
}

void ErrorFeedback::load_all(const HookState& state, bool keeps) {
    for (const auto& array : state.arrays)
        if (!keeps || array.key != key_)
            fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state has an array '", array.key,
                 "', which this hook does not keep");
    load(read(state));
}

std::int64_t StepCounter::read(const HookState& state, const std::string& hook) {
    const auto steps = state.numbers.find(kSteps);
    if (steps == state.numbers.end() || !plausible(steps->second))
        fail(DDP_ERROR_INVALID_ARGUMENT, hook,
             ": the state does not say after how many steps it was saved");
    return steps->second;
}

}  // namespace libddp
