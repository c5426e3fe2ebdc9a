#include "hooks/powersgd_layers.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/default_arithmetic.h"
#include "device/dtype.h"
#include "device/low_rank.h"
#include "device/scratch.h"
#include "hooks/allreduce.h"
#include "hooks/plain_part.h"

namespace libddp {
namespace {

using powersgd::Thin;

// Elements between the beginnings of two thin matrices: a multiple of 16 bytes, so that a sum over one has the same order
// wherever it lies.
std::size_t padded(std::size_t elements) {
    return (elements + 3) / 4 * 4;
}

}  // namespace

// A parameter that is compressed.
struct LayeredPowerSgdHook::Layer {
    std::int32_t param;
    cpu::LowRankMatrix m;
    std::size_t count;
    Kept* last_q;
    Thin p, q, own_q;
    std::size_t p_begin, q_begin;  // in the memory of all P and of all Q
    bool finite = true;
};

struct LayeredPowerSgdHook::Job {
    ddp_dtype dtype = DDP_F32;    // of gradients
    ddp_dtype compute = DDP_F32;  // of P, Q and errors
    std::vector<Layer> layers;
    PlainPart plain;
    std::size_t p_count = 0, q_count = 0, widest = 0;
    ScratchMemory all_p, all_q, all_own_q, workspace;

    void clear(const ddp_bucket& bucket) {
        dtype = bucket.dtype;
        layers.clear();
        plain.clear();
        p_count = q_count = widest = 0;
    }
    // After all are laid out, because memory moves when it grows.
    void place() {
        const std::size_t item = dtype_size(compute);
        std::byte* p = all_p.require(p_count * item);
        std::byte* q = all_q.require(q_count * item);
        std::byte* own_q = all_own_q.require(q_count * item);
        workspace.require(widest * item);
        for (Layer& layer : layers) {
            layer.p.data = p + layer.p_begin * item;
            layer.q.data = q + layer.q_begin * item;
            layer.own_q.data = own_q + layer.q_begin * item;
        }
    }
};

// The order is the same on all ranks: what is not compressed, the sum of all P, the sum of all Q.
WorkPtr LayeredPowerSgdHook::compress(ddp_group& group, ddp_bucket& bucket) {
    auto job = jobs_.take(bucket.index);
    lay_out(bucket, *job);
    if (job->layers.empty()) return allreduce(group, bucket);
    const auto submit = [&group, job](const void* from, void* to, std::size_t count, ddp_reduce_op op) {
        return group.impl->submit({DDP_COLLECTIVE_ALLREDUCE, from, to, count, job->compute, op}, job);
    };
    job->plain.submit(*group.impl, bucket, job);
    project(*job);
    return submit(nullptr, job->all_p.get(), job->p_count, DDP_SUM)
        ->then(
            [this, job, submit, op = bucket.op()] {
                project_back(*job);
                return submit(job->all_own_q.get(), job->all_q.get(), job->q_count, op);
            },
            true)
        ->then(
            // The bucket's memory too must last until here.
            [this, job, gradients = current_tag().memory]() -> WorkPtr {
                restore(*job);
                return nullptr;
            },
            true);
}

void LayeredPowerSgdHook::lay_out(const ddp_bucket& bucket, Job& job) {
    job.clear(bucket);
    job.compute = compute_dtype(bucket);
    std::size_t before = 0, after = 0;
    for (const BucketTensor& tensor : bucket.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        const std::size_t n = tensor.ndim >= 2 && count > 0 ? static_cast<std::size_t>(tensor.shape[0]) : 0;
        const std::size_t m = n > 0 ? count / n : 0, columns = columns_for(n, m);
        before += count;
        after += columns > 0 ? (n + m) * columns : count;
        if (columns == 0) {
            job.plain.add(tensor.gradient, count * dtype_size(bucket.dtype));
            continue;
        }
        // An absent gradient sends nothing of its error: perhaps nobody takes the result.
        const bool has_error = feeds_back() && !tensor.absent;
        void* error = has_error ? state().error(tensor.param, job.compute, count).memory.get() : nullptr;
        job.layers.push_back({tensor.param,
                              {tensor.gradient, bucket.dtype, error, n, m},
                              count,
                              &state().q(tensor.param),
                              {nullptr, job.compute, n, columns},
                              {nullptr, job.compute, m, columns},
                              {nullptr, job.compute, m, columns},
                              job.p_count,
                              job.q_count});
        job.p_count += padded(n * columns);
        job.q_count += padded(m * columns);
        job.widest = std::max({job.widest, n * columns, m * columns});
    }
    job.place();
    count_elements(before, after);
}

void LayeredPowerSgdHook::project(Job& job) const {
    for (const Layer& layer : job.layers) {
        begin_q(*layer.last_q, layer.param, layer.q, job.workspace.get());
        cpu::low_rank_project(layer.m, columns_of(layer.q), columns_of(layer.p), layer.p.columns);
    }
}

// P now has the same bits on every rank, and so every rank comes to the same decisions. What a rank sent before P has
// arrived too.
void LayeredPowerSgdHook::project_back(Job& job) const {
    const DefaultArithmeticScope arithmetic;
    job.plain.give_back();
    std::memset(job.all_own_q.get(), 0, job.q_count * dtype_size(job.compute));
    for (Layer& layer : job.layers) {
        layer.finite = powersgd::all_finite(layer.p.data, job.compute, layer.p.count());
        if (!layer.finite) continue;
        orthogonalize(layer.p, job.workspace.get());
        cpu::low_rank_project_back(layer.m, columns_of(layer.p), columns_of(layer.own_q), layer.p.columns);
    }
}

// A rank whose own gradient was finite could not tell from its error that another's was not: nothing has been changed up
// to here, and nothing is for such a parameter.
void LayeredPowerSgdHook::restore(Job& job) const {
    const DefaultArithmeticScope arithmetic;
    for (const Layer& layer : job.layers) {
        if (!layer.finite || !powersgd::all_finite(layer.q.data, job.compute, layer.q.count())) {
            powersgd::fill_nan(layer.m.gradient, job.dtype, layer.count);
            continue;
        }
        cpu::low_rank_restore(layer.m, columns_of(layer.p), columns_of(layer.q), columns_of(layer.own_q),
                              layer.p.columns);
        keep_q(*layer.last_q, layer.q);
    }
}

}  // namespace libddp
