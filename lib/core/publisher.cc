#include "core/publisher.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/link.h"
#include "comm/verdict.h"
#include "core/reducer_parts.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

// The buckets, beginning with that of the parameter that was registered first.
std::vector<std::size_t> forward_order(const BucketPlan& plan) {
    const auto first = [&plan](std::size_t bucket) {
        const auto& params = plan.buckets[bucket].params;
        return *std::min_element(params.begin(), params.end());
    };
    std::vector<std::size_t> order(plan.buckets.size());
    for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
    std::sort(order.begin(), order.end(),
              [&first](std::size_t a, std::size_t b) { return first(a) < first(b); });
    return order;
}

std::size_t bytes_of(const ShardPiece& piece, const Param& p) {
    return static_cast<std::size_t>(piece.count) * dtype_size(p.dtype);
}

// In the program's memory.
std::byte* value_of(const ShardPiece& piece, const Param& p) {
    return static_cast<std::byte*>(p.data) +
           static_cast<std::size_t>(piece.first) * dtype_size(p.dtype);
}

std::byte* place_of(const ddp_bucket& bucket, const ShardPiece& piece) {
    return static_cast<std::byte*>(bucket.buffer) + piece.offset;
}

const Shards::Values& values_of(const ReducerParts& parts, const ddp_bucket& bucket) {
    return parts.layout->shards().values()[static_cast<std::size_t>(bucket.index)];
}

// Sends this rank's values of a bucket. Null: no other rank has or needs one.
WorkPtr send(const ReducerParts& parts, const ddp_bucket& bucket, const OpTag& tag) {
    const Shards::Values& values = values_of(parts, bucket);
    if (parts.group->world() == 1 || values.bytes == 0) return nullptr;
    for (std::size_t i = values.begin; i < values.end; ++i) {
        const ShardPiece& piece = values.pieces[i];
        const Param& p = parts.model.table[piece.param];
        std::memcpy(place_of(bucket, piece), value_of(piece, p), bytes_of(piece, p));
    }
    return parts.group->link(static_cast<std::size_t>(bucket.index))
        ->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, bucket.buffer, values.bytes, DDP_U8, DDP_SUM,
                  0, bucket.device, values.counts},
                 tag);
}

// Results that a hook left elsewhere.
void bring_home(const ddp_bucket& bucket, std::byte* gradient, std::size_t count) {
    const auto before = static_cast<std::size_t>(gradient - static_cast<std::byte*>(bucket.buffer));
    const std::byte* const result =
        static_cast<const std::byte*>(bucket.result) +
        before / dtype_size(bucket.dtype) * dtype_size(bucket.result_dtype);
    cpu::convert(gradient, bucket.dtype, result, bucket.result_dtype, count);
}

OpTag tag_between_steps(const ReducerParts& parts, std::size_t bucket) {
    OpTag tag = parts.queue.step_tag(Purpose::kPublish);
    tag.facts.bucket = static_cast<std::int32_t>(bucket);
    tag.order.queue = parts.group->link(bucket)->executor();
    tag.memory.used = parts.layout->memory(bucket);
    return tag;
}

}  // namespace

void Publisher::publish(ReducerParts& parts) {
    finish(parts);
    if (parts.gradients.any_waits())
        parts.refuse_in_step(str("gradients of unsynced steps wait for step ", parts.totals.steps,
                                 " in the memory through which values travel; call it after the "
                                 "synced step"));
    parcels_.clear();
    parcels_.resize(parts.layout->size());
    for (const std::size_t b : forward_order(parts.layout->plan())) {
        auto parcel = std::make_unique<Parcel>();
        parcel->work = send(parts, parts.layout->describe(b), tag_between_steps(parts, b));
        parcels_[b] = std::move(parcel);
    }
    due_ = false;
}

WorkPtr Publisher::update(const ReducerParts& parts, const ddp_bucket& bucket, const OpTag& tag) {
    const Shards::Values& values = values_of(parts, bucket);
    std::vector<ddp_piece> pieces;
    const auto add = [&](const ShardPiece& own) {
        const Param& p = parts.model.table[own.param];
        const ParamState& s = parts.gradients[own.param];
        if (s.now.role != Role::kExpected) return;
        std::byte* const gradient =
            s.place + static_cast<std::size_t>(own.first) * dtype_size(bucket.dtype);
        if (bucket.result) bring_home(bucket, gradient, static_cast<std::size_t>(own.count));
        pieces.push_back({sizeof(ddp_piece), own.param, own.replicated ? 1 : 0, own.first,
                          own.count, p.data ? value_of(own, p) : nullptr, gradient});
    };
    for (std::size_t i = values.begin; i < values.end; ++i) add(values.pieces[i]);
    for (const ShardPiece& own : values.replicated) add(own);
    std::vector<const ddp_piece*> pointers;
    for (const ddp_piece& piece : pieces) pointers.push_back(&piece);
    ddp_error* error = nullptr;
    const ddp_status status =
        update_.fn(update_.user_data.get(), pointers.data(), pointers.size(), &error);
    if (status != DDP_OK)
        throw Error(take_user_error(status, error, "the function of ddp_set_update"));
    auto parcel = std::make_unique<Parcel>();
    parcel->work = send(parts, bucket, tag);
    const WorkPtr work = parcel->work;
    parcels_[static_cast<std::size_t>(bucket.index)] = std::move(parcel);
    return work;
}

void Publisher::wait(ReducerParts& parts, std::int32_t param) {
    const std::int32_t bucket = parts.gradients[param].bucket;
    if (bucket >= 0) take(parts, static_cast<std::size_t>(bucket));
}

void Publisher::take(ReducerParts& parts, std::size_t b) {
    Parcel* const parcel = b < parcels_.size() ? parcels_[b].get() : nullptr;
    if (!parcel || parcel->taken.load(std::memory_order_acquire)) return;
    if (parcel->work) {
        parcel->work->wait(std::nullopt);
        if (const ErrorInfo result = parcel->work->result(); !result.ok()) throw Error(result);
    }
    const Lock lock(parcel->mutex);
    if (parcel->taken.load(std::memory_order_relaxed)) return;
    const ddp_bucket bucket = parts.layout->describe(b);
    const Shards::Values& values = parts.layout->shards().values()[b];
    for (std::size_t i = 0; i < values.pieces.size() && parcel->work; ++i) {
        if (i >= values.begin && i < values.end) continue;  // this rank's own
        const ShardPiece& piece = values.pieces[i];
        const Param& p = parts.model.table[piece.param];
        std::memcpy(value_of(piece, p), place_of(bucket, piece), bytes_of(piece, p));
    }
    for (const BucketTensor& tensor : bucket.tensors)
        if (!parts.model.table[tensor.param].grad)
            HostGradients::clear_home(bucket, parts.gradients[tensor.param]);
    parcel->taken.store(true, std::memory_order_release);
}

void Publisher::finish(ReducerParts& parts) {
    for (std::size_t b = 0; b < parcels_.size(); ++b) take(parts, b);
}

void Publisher::forget(ReducerParts& parts) {
    const bool any = std::any_of(parcels_.begin(), parcels_.end(), [](const auto& parcel) {
        return parcel && !parcel->taken.load(std::memory_order_relaxed);
    });
    for (std::int32_t id = 0; id < parts.model.table.size() && any; ++id)
        if (const ParamState& s = parts.gradients[id]; s.place && !parts.model.table[id].grad)
            HostGradients::clear_home({}, s);
    parcels_.clear();
    due_ = false;
}

void Publisher::on_begin(ReducerParts& parts) {
    if (due_)
        parts.refuse_in_step(
            str("each rank has updated its own shard only, and not published it, since step ",
                parts.totals.steps - 1,
                "; call ddp_publish after the optimizer on every rank, also where it changed "
                "nothing"));
    finish(parts);
    if (updates() && parcels_.size() != parts.layout->size()) {
        parcels_.clear();
        parcels_.resize(parts.layout->size());
    }
}

void Publisher::on_end(ReducerParts& parts) {
    due_ = parts.step->has_results() && !parts.step->skipped && !updates();
}

}  // namespace libddp
