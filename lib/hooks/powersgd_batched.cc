#include "hooks/powersgd_batched.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "device/default_arithmetic.h"
#include "device/dtype.h"
#include "device/low_rank.h"
#include "device/scratch.h"
#include "hooks/allreduce.h"

namespace libddp {
namespace {

using powersgd::Thin;

std::size_t side_of(std::size_t count) {
    auto side = static_cast<std::size_t>(std::sqrt(static_cast<double>(count)));
    while (side * side < count) ++side;
    while (side > 0 && (side - 1) * (side - 1) >= count) --side;
    return side;
}

}  // namespace

struct BatchedPowerSgdHook::Job {
    // A parameter, or a gap between two (-1).
    struct Piece {
        std::int32_t param;
        std::size_t begin, count;
        bool absent = false;  // this rank has no gradient: its error waits
        bool finite = true;
        std::vector<std::byte> saved_error;
    };

    ddp_dtype dtype = DDP_F32, compute = DDP_F32;
    std::byte* gradients = nullptr;
    std::shared_ptr<std::byte> errors;  // null without error feedback
    std::size_t count = 0;
    std::vector<Piece> pieces;
    std::int32_t owner = 0;  // of Q: the bucket
    Kept* last_q = nullptr;
    Thin p, q, own_q;
    bool finite = true;
    ScratchMemory all_p, all_q, all_own_q, workspace;

    std::byte* gradient(const Piece& piece) const { return gradients + piece.begin * dtype_size(dtype); }
    std::byte* error(const Piece& piece) const { return errors.get() + piece.begin * dtype_size(compute); }
    std::size_t gradient_bytes(const Piece& piece) const { return piece.count * dtype_size(dtype); }
    std::size_t error_bytes(const Piece& piece) const { return piece.count * dtype_size(compute); }

    // After the elements of P one for each piece: how many ranks found it not finite.
    std::size_t sent_with_p() const { return p.count() + pieces.size(); }
    double flag(std::size_t piece) const {
        const std::size_t at = p.count() + piece;
        return compute == DDP_F64 ? static_cast<const double*>(p.data)[at]
                                  : static_cast<double>(static_cast<const float*>(p.data)[at]);
    }
    void set_flag(std::size_t piece) {
        const std::size_t at = p.count() + piece;
        if (compute == DDP_F64)
            static_cast<double*>(p.data)[at] = 1;
        else
            static_cast<float*>(p.data)[at] = 1;
    }

    // The rows that are full, and the one that may follow. Rows of zeros are not there.
    template <class Body>
    void for_rows(Body body) const {
        const std::size_t side = p.rows, full = count / side, rest = count % side;
        const std::size_t item = dtype_size(compute);
        const auto rows = [&](std::size_t first, std::size_t number, std::size_t columns) {
            std::byte* error = errors ? errors.get() + first * side * item : nullptr;
            const cpu::LowRankMatrix m{gradients + first * side * dtype_size(dtype), dtype, error, number, columns};
            body(m, cpu::ThinMatrix{static_cast<std::byte*>(p.data) + first * item, side});
        };
        if (full > 0) rows(0, full, side);
        if (rest > 0) rows(full, 1, rest);
    }

    void set_gradient_to_zero(const Piece& piece) const { std::memset(gradient(piece), 0, gradient_bytes(piece)); }
    void set_error_to_zero(const Piece& piece) const {
        if (errors) std::memset(error(piece), 0, error_bytes(piece));
    }
    void set_error_aside(Piece& piece) const {
        if (!errors || !piece.saved_error.empty()) return;
        piece.saved_error.assign(error(piece), error(piece) + error_bytes(piece));
        set_error_to_zero(piece);
    }
    void clear_gaps() const {
        for (const Piece& piece : pieces) {
            if (piece.param >= 0) continue;
            set_gradient_to_zero(piece);
            set_error_to_zero(piece);
        }
    }
};

WorkPtr BatchedPowerSgdHook::compress(ddp_group& group, ddp_bucket& bucket) {
    const std::size_t side = side_of(bucket.count), columns = bucket.count > 0 ? columns_for(side, side) : 0;
    std::size_t content = 0;
    for (const BucketTensor& tensor : bucket.tensors) content += static_cast<std::size_t>(tensor.count);
    count_elements(content, columns > 0 ? 2 * side * columns : content);
    if (columns == 0) return allreduce(group, bucket);
    auto job = jobs_.take(bucket.index);
    lay_out(bucket, side, columns, *job);
    project(*job);
    const auto submit = [&group, job](const void* from, void* to, std::size_t count, ddp_reduce_op op) {
        return group.impl->submit({DDP_COLLECTIVE_ALLREDUCE, from, to, count, job->compute, op}, job);
    };
    return submit(nullptr, job->p.data, job->sent_with_p(), DDP_SUM)
        ->then(
            [this, job, submit, op = bucket.op()] {
                project_back(*job);
                return submit(job->own_q.data, job->q.data, job->q.count(), op);
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

// The errors are moved together when the bucket has other parameters than in the last step, or new ones were loaded.
std::shared_ptr<std::byte> BatchedPowerSgdHook::errors_of(const ddp_bucket& bucket) {
    const ddp_dtype dtype = compute_dtype(bucket);
    const std::size_t item = dtype_size(dtype);
    std::shared_ptr<std::byte> memory = blocks_[bucket.index].lock();
    std::vector<std::pair<Kept*, std::size_t>> places;
    bool in_place = true;
    for (const BucketTensor& tensor : bucket.tensors) {
        if (tensor.count == 0) continue;
        Kept& kept = state().error(tensor.param, dtype, static_cast<std::size_t>(tensor.count));
        const std::size_t offset = bucket.first_element(tensor) * item;
        in_place = in_place && memory && kept.memory.get() == memory.get() + offset;
        places.emplace_back(&kept, offset);
    }
    if (in_place) return memory;
    memory = allocate_zeroed(bucket.count * item);
    for (const auto& [kept, offset] : places) {
        std::memcpy(memory.get() + offset, kept->memory.get(), kept->bytes());
        kept->memory = {memory, memory.get() + offset};
    }
    blocks_[bucket.index] = memory;
    return memory;
}

void BatchedPowerSgdHook::lay_out(const ddp_bucket& bucket, std::size_t side, std::size_t columns, Job& job) {
    job.dtype = bucket.dtype;
    job.compute = compute_dtype(bucket);
    job.gradients = static_cast<std::byte*>(bucket.buffer);
    job.errors = feeds_back() ? errors_of(bucket) : nullptr;
    job.count = bucket.count;
    job.finite = true;
    job.pieces.clear();
    std::size_t end = 0;
    const auto add = [&](std::int32_t param, std::size_t begin, std::size_t count, bool absent = false) {
        if (count > 0) job.pieces.push_back({param, begin, count, absent, true, {}});
        end = begin + count;
    };
    for (const BucketTensor& tensor : bucket.tensors) {
        const std::size_t begin = bucket.first_element(tensor);
        add(-1, end, begin - end);
        add(tensor.param, begin, static_cast<std::size_t>(tensor.count), tensor.absent);
    }
    add(-1, end, bucket.count - end);
    job.owner = bucket.index;
    job.last_q = &state().q(bucket.index);
    const std::size_t item = dtype_size(job.compute), elements = side * columns;
    job.p = {job.all_p.require((elements + job.pieces.size()) * item), job.compute, side, columns};
    job.q = {job.all_q.require(elements * item), job.compute, side, columns};
    job.own_q = {job.all_own_q.require(elements * item), job.compute, side, columns};
    job.workspace.require(elements * item);
    job.clear_gaps();
    for (auto& piece : job.pieces)
        if (piece.absent) job.set_error_aside(piece);
}

// A row of P says that something in a row of M is not finite, but not in which parameter. That parameter's gradient is
// left out, and all ranks are told.
void BatchedPowerSgdHook::project(Job& job) const {
    begin_q(*job.last_q, job.owner, job.q, job.workspace.get());
    std::memset(job.p.data, 0, job.sent_with_p() * dtype_size(job.compute));
    const auto multiply = [&](const cpu::LowRankMatrix& m, const cpu::ThinMatrix& p) {
        cpu::low_rank_project(m, columns_of(job.q), p, job.p.columns);
    };
    job.for_rows(multiply);
    if (powersgd::all_finite(job.p.data, job.compute, job.p.count())) return;
    for (std::size_t i = 0; i < job.pieces.size(); ++i) {
        const auto& piece = job.pieces[i];
        if (powersgd::all_finite(job.gradient(piece), job.dtype, piece.count)) continue;
        job.set_gradient_to_zero(piece);
        job.set_flag(i);
    }
    job.for_rows(multiply);
}

// From here on all ranks know and leave out the same parameters. What they have kept is set aside meanwhile.
void BatchedPowerSgdHook::project_back(Job& job) const {
    const DefaultArithmeticScope arithmetic;
    std::memset(job.own_q.data, 0, job.q.count() * dtype_size(job.compute));
    job.finite = powersgd::all_finite(job.p.data, job.compute, job.p.count());
    if (!job.finite) return;
    for (std::size_t i = 0; i < job.pieces.size(); ++i) {
        auto& piece = job.pieces[i];
        piece.finite = job.flag(i) == 0;
        if (piece.finite) continue;
        job.set_gradient_to_zero(piece);
        job.set_error_aside(piece);
    }
    orthogonalize(job.p, job.workspace.get());
    job.for_rows([&](const cpu::LowRankMatrix& m, const cpu::ThinMatrix& p) {
        cpu::low_rank_project_back(m, p, columns_of(job.own_q), job.p.columns);
    });
}

void BatchedPowerSgdHook::restore(Job& job) const {
    const DefaultArithmeticScope arithmetic;
    job.finite = job.finite && powersgd::all_finite(job.q.data, job.compute, job.q.count());
    if (job.finite) {
        job.for_rows([&](const cpu::LowRankMatrix& m, const cpu::ThinMatrix& p) {
            cpu::low_rank_restore(m, p, columns_of(job.q), columns_of(job.own_q), job.p.columns);
        });
        keep_q(*job.last_q, job.q);
        job.clear_gaps();
    }
    for (const auto& piece : job.pieces) {
        if (piece.param < 0) continue;
        if (!job.finite || !piece.finite) powersgd::fill_nan(job.gradient(piece), job.dtype, piece.count);
        if (!piece.saved_error.empty()) std::memcpy(job.error(piece), piece.saved_error.data(), job.error_bytes(piece));
    }
}

}  // namespace libddp
