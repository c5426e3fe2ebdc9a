#include "comm/link_operation.h"

#include "comm/link.h"
#include "comm/monitor.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

// How long the thread that computes looks for the other ranks. Ranks that compute the same come within this, and then stay
// in step: each reduces a part of every bucket. One that gave up early would run ahead and leave all reducing to the other.
// Who is early has to wait at the end of the step anyway.
constexpr std::int64_t kPatienceNs = 1'000'000;

}  // namespace

// The number is given when the turn comes, and so counts the same on every rank.
void LinkOperation::begin() {
    if (begun_) return;
    begun_ = true;
    const Collective& c = collective_;
    const std::int64_t sequence = link_.next_sequence_++;
    if (link_.monitor_) link_.monitor_->set_progress(sequence + 1);
    mine_ = {tag_.plan, tag_.step, tag_.synced_steps, sequence,     c.count, tag_.bucket, c.kind, c.dtype,
             c.op,      c.root,    c.device.kind,     tag_.purpose, 0};
    const bool unchecked =
        (link_.config_.flags & DDP_GROUP_NO_MATCH_CHECK) && !link_.transport_->has(DDP_BACKEND_NEEDS_MATCH);
    checked_ = link_.world() > 1 && !unchecked;

    op_.struct_size = sizeof op_;
    op_.kind = c.kind;
    op_.dtype = c.dtype;
    op_.op = c.op;
    op_.root = c.root;
    op_.send = c.send ? c.send : c.recv;
    op_.recv = c.recv;
    op_.count = c.count;
    op_.scale = 1;
    op_.timeout_ms = link_.config_.timeout_ms;
    op_.device = c.device;
    op_.copied_bytes = &copied_;
    if (c.kind == DDP_COLLECTIVE_ALLGATHER && !c.send)
        op_.send = static_cast<const std::byte*>(c.recv) +
                   dtype_size(c.dtype) * c.count * static_cast<std::size_t>(link_.rank());
    if (reduces(c.kind) && c.op == DDP_AVG) {
        op_.op = DDP_SUM;
        (link_.fuses_scale(c.device.kind) ? op_.scale : scale_after_) = 1.0 / link_.world();
    }
    // What a device's own backend runs is compared before, on the host.
    if (checked_ && link_.transport_->has(DDP_BACKEND_COMPARES) && !(on_device() && link_.on_device_)) {
        op_.signature = &mine_;
        op_.theirs = &theirs_;
        op_.signature_size = sizeof mine_;
    }
}

bool LinkOperation::ready() {
    if (on_device()) return ready_on_device();
    if (!link_.transport_->has_ready()) return false;
    begin();
    if (scale_after_ != 1) return false;
    try {
        return link_.transport_->ready(op_, kPatienceNs);
    } catch (const std::exception&) {
        return false;  // run() fails in the same way, and says why
    }
}

// Nothing to wait for: at once, in order with what the calling thread enqueues before and after.
bool LinkOperation::ready_on_device() {
    begin();
    return !checked_ && (link_.on_device_ || link_.world() == 1);
}

ErrorInfo LinkOperation::run() noexcept try {
    if (link_.broken()) return link_.verdict();
    begin();
    try {
        if (checked_ && !op_.signature) {
            std::int32_t other = -1;
            if (!link_.transport_->match(&mine_, &theirs_, sizeof mine_, op_.timeout_ms, &other))
                return disagree(other);
        }
        run_scaled();
        if (tag_.traffic) tag_.traffic->copied.fetch_add(copied_, std::memory_order_relaxed);
        return {};
    } catch (...) {
        return resolve(caught());
    }
} catch (...) {
    return caught();
}

// DDP_AVG is a sum with a scale. A backend that cannot apply it gets values divided beforehand, which keeps sums of low
// precision finite; integers, which that would ruin, and reduce_scatter, whose input is not ours to change, are divided
// afterwards.
void LinkOperation::run_scaled() {
    if (on_device())
        return link_.path(collective_.device)
            .run(op_, scale_after_,
                 {*tag_.stream, *submitted_, tag_.enqueued ? tag_.enqueued : tag_.memory, describe(mine_)});
    if (scale_after_ != 1 && op_.kind == DDP_COLLECTIVE_ALLREDUCE && is_floating(op_.dtype)) {
        cpu::scale_copy(op_.recv, op_.send, op_.count, op_.dtype, scale_after_);
        op_.send = op_.recv;
        scale_after_ = 1;
    }
    link_.transport_->run(op_);
    if (scale_after_ != 1) cpu::scale_copy(op_.recv, op_.recv, op_.count, op_.dtype, scale_after_);
}

ErrorInfo LinkOperation::disagree(std::int32_t other) {
    return link_.break_everywhere(
        {DDP_ERROR_MISMATCH, describe_mismatch(mine_, link_.rank(), theirs_, other, tag_.label ? *tag_.label : ""),
         other, -1, tag_.bucket, tag_.step});
}

ErrorInfo LinkOperation::resolve(ErrorInfo error) {
    const auto alive = link_.weak_from_this().lock();  // what fails now may own the group
    if (error.code == DDP_ERROR_MISMATCH && op_.signature) return disagree(error.rank);
    if (is_interruption(error)) return link_.interrupted({tag_.step, tag_.bucket, collective_.kind});
    error.bucket = tag_.bucket;
    error.step = tag_.step;
    if (!may_be_an_echo(error.code)) error = on_rank(link_.rank(), std::move(error));
    return link_.break_everywhere(link_.monitor_ ? link_.monitor_->resolve(error, describe(mine_), advice_for(mine_))
                                                 : error);
}

}  // namespace libddp
