#include "core/publisher.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/link.h"
#include "comm/verdict.h"
#include "core/agreement.h"
#include "core/delivery.h"
#include "core/reducer_parts.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/interrupt.h"
#include "util/log.h"

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

// place: of the parameter's gradient.
ddp_piece piece_of(const ShardPiece& own, const Param& p, std::byte* place) {
    return {sizeof(ddp_piece),
            own.param,
            own.replicated ? 1 : 0,
            own.first,
            own.count,
            p.data ? value_of(own, p) : nullptr,
            place + static_cast<std::size_t>(own.first) * dtype_size(p.gradient.dtype)};
}

const Shards::Values& values_of(const ReducerParts& parts, const ddp_bucket& bucket) {
    return parts.layout->shards().values()[static_cast<std::size_t>(bucket.index)];
}

// Where other ranks' values belong, in the order of the bucket.
std::vector<Delivery::Target> targets_of(const ReducerParts& parts, const ddp_bucket& bucket) {
    const Shards::Values& values = values_of(parts, bucket);
    std::vector<Delivery::Target> targets;
    for (std::size_t i = 0; i < values.pieces.size(); ++i) {
        if (i >= values.begin && i < values.end) continue;  // this rank's own
        const ShardPiece& piece = values.pieces[i];
        const Param& p = parts.model.table[piece.param];
        targets.push_back({value_of(piece, p), piece.offset, bytes_of(piece, p)});
    }
    return targets;
}

// Where the results of a rank begin in a bucket of one section.
std::byte* own_part(const ddp_bucket& bucket, std::int32_t rank) {
    const BucketSection& section = bucket.sections->front();
    const auto counts = section.counts->begin();
    const std::uint64_t before = std::accumulate(counts, counts + rank, std::uint64_t{0});
    return static_cast<std::byte*>(bucket.buffer) +
           (section.begin + static_cast<std::size_t>(before)) * dtype_size(bucket.dtype);
}

// Brings this rank's values to where the other ranks find them.
void pack(const ReducerParts& parts, const ddp_bucket& bucket) {
    const Shards::Values& values = values_of(parts, bucket);
    if (parts.group->world() == 1 || values.bytes == 0) return;
    std::vector<ddp_segment> segments;
    for (std::size_t i = values.begin; i < values.end; ++i) {
        const ShardPiece& piece = values.pieces[i];
        const Param& p = parts.model.table[piece.param];
        segments.push_back({place_of(bucket, piece), value_of(piece, p), bytes_of(piece, p)});
    }
    transfer(bucket.home, segments, DDP_U8);
}

// The gradients that live in the bucket, to become zero.
std::vector<ddp_segment> views_of(const ReducerParts& parts, const ddp_bucket& bucket) {
    std::vector<ddp_segment> segments;
    for (const BucketTensor& tensor : bucket.tensors) {
        const ParamState& s = parts.gradients[tensor.param];
        if (!parts.model.table[tensor.param].grad)
            segments.push_back({s.grad ? s.grad : s.place, nullptr, s.bytes});
    }
    return segments;
}

// Results that a hook left elsewhere.
void bring_home(const ddp_bucket& bucket, std::byte* gradient, std::size_t count) {
    const auto before = static_cast<std::size_t>(gradient - static_cast<std::byte*>(bucket.buffer));
    const std::byte* const result =
        static_cast<const std::byte*>(bucket.result) +
        before / dtype_size(bucket.dtype) * dtype_size(bucket.result_dtype);
    cpu::convert(gradient, bucket.dtype, result, bucket.result_dtype, count);
}

// Values that do not travel otherwise: those of rank 0 become those of all.
void send_replicated(const ReducerParts& parts) {
    std::vector<const Param*> params;
    for (const Param& p : parts.model.table.params())
        if (p.gradient.owner == Owner::kAll) params.push_back(&p);
    broadcast_state(*parts.group, parts.number->tag(Purpose::kPublish), parts.model.streams, params,
                    0);
}

OpTag tag_between_steps(const ReducerParts& parts, const ddp_bucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index);
    OpTag tag = parts.queue.step_tag(Purpose::kPublish);
    tag.facts.bucket = bucket.index;
    tag.order = {parts.group->link(index)->executor(), bucket.stream};
    tag.memory.used = parts.layout->memory(index);
    return tag;
}

}  // namespace

// A bucket whose values are on their way.
struct Publisher::Parcel {
    WorkPtr work{};                        // null: no other rank has or needs a value
    std::shared_ptr<Delivery> delivery{};  // that of their values; null: they are in the bucket
    EventPtr arrived{};              // on a device: where its stream is when the values are there
    std::atomic<bool> taken{false};  // releases the values in the program's memory
    std::atomic<bool> asked_for{false};  // the program has waited for them
    Mutex mutex{};
};

Publisher::~Publisher() {
    const Lock lock(mutex_);
    let_go();
}

// Sends this rank's values of a bucket, which are there. at_once: those of other ranks are written
// when they come, and not when the program waits for them.
std::shared_ptr<Publisher::Parcel> Publisher::send(const ReducerParts& parts,
                                                   const ddp_bucket& bucket, const OpTag& tag,
                                                   bool at_once) {
    const auto parcel = std::make_shared<Parcel>();
    const Shards::Values& values = values_of(parts, bucket);
    if (parts.group->world() == 1 || values.bytes == 0) return parcel;
    Collective gather{DDP_COLLECTIVE_ALLGATHER,
                      nullptr,
                      bucket.buffer,
                      values.bytes,
                      DDP_U8,
                      DDP_SUM,
                      0,
                      bucket.device,
                      values.counts};
    if (at_once) {
        parcel->delivery = std::make_shared<Delivery>(targets_of(parts, bucket));
        gather.take = [delivery = parcel->delivery](const void* data, std::size_t offset,
                                                    std::size_t bytes) {
            delivery->take(data, offset, bytes);
        };
    }
    if (bucket.stream) bucket.stream->wait(*bucket.home->record());
    parcel->work = parts.group->link(static_cast<std::size_t>(bucket.index))->submit(gather, tag);
    if (bucket.stream)
        parcel->work = parcel->work->then(
            [parcel, stream = bucket.stream](const OpTag&) -> WorkPtr {
                parcel->arrived = stream->record();
                return nullptr;
            },
            true, tag);
    return parcel;
}

void Publisher::publish(ReducerParts& parts) {
    finish(parts);
    if (parts.gradients.any_waits())
        parts.refuse_in_step(str("gradients of unsynced steps wait for step ", parts.totals.steps,
                                 " in the memory through which values travel; call it after the "
                                 "synced step"));
    if (torn_) send_replicated(parts);
    const StreamScope order(parts.model.streams);
    for (const std::size_t b : forward_order(parts.layout->plan())) {
        const ddp_bucket bucket = parts.layout->describe(b);
        pack(parts, bucket);
        put(b, send(parts, bucket, tag_between_steps(parts, bucket), false));
    }
    due_ = torn_ = false;
    parts.totals.means = Means::kPublished;
}

WorkPtr Publisher::update(ReducerParts& parts, const ddp_bucket& bucket, const OpTag& tag) {
    for (const auto& observer : parts.observers.all) observer->on_bucket(parts, bucket);
    const auto index = static_cast<std::size_t>(bucket.index);
    if (!blocks_[index] || !blocks_[index]->finish()) {
        update_pieces(parts, bucket);
        pack(parts, bucket);
    }
    const std::shared_ptr<Parcel> parcel = send(parts, bucket, tag, true);
    put(index, parcel);
    return parcel->work;
}

void Publisher::update_pieces(const ReducerParts& parts, const ddp_bucket& bucket) {
    const Shards::Values& values = values_of(parts, bucket);
    std::vector<ddp_piece> pieces;
    const auto add = [&](const ShardPiece& own) {
        const Param& p = parts.model.table[own.param];
        const ParamState& s = parts.gradients[own.param];
        if (s.now.role != Role::kExpected) return;
        pieces.push_back(piece_of(own, p, s.place));
        if (bucket.result)
            bring_home(bucket, static_cast<std::byte*>(pieces.back().gradient),
                       static_cast<std::size_t>(own.count));
    };
    for (std::size_t i = values.begin; i < values.end; ++i) add(values.pieces[i]);
    for (const ShardPiece& own : values.replicated) add(own);
    std::vector<const ddp_piece*> pointers;
    for (const ddp_piece& piece : pieces) pointers.push_back(&piece);
    due_ = true;
    updates_.pieces(pointers);
}

void Publisher::set_updates(ReducerParts& parts, Updates updates) {
    updates_ = std::move(updates);
    on_layout(parts);
}

void Publisher::on_layout(ReducerParts& parts) {
    blocks_.clear();
    for (std::size_t b = 0; b < parts.layout->size(); ++b) {
        std::shared_ptr<BlockUpdate> blocks = in_blocks(parts, parts.layout->describe(b));
        Collective::Take take;
        if (blocks)
            take = [blocks](const void*, std::size_t offset, std::size_t bytes) {
                blocks->take(offset, bytes);
            };
        parts.queue.set_take(b, std::move(take));
        blocks_.push_back(std::move(blocks));
    }
}

// Null unless one collective gives all results of this rank, each value has the place of its
// gradient, and nobody else looks at that first.
std::shared_ptr<BlockUpdate> Publisher::in_blocks(const ReducerParts& parts,
                                                  const ddp_bucket& bucket) {
    if (!updates_.elements || parts.observers.numbers || parts.group->world() == 1) return nullptr;
    if (!bucket.sections || bucket.sections->size() != 1 || !bucket.sections->front().counts)
        return nullptr;
    const std::byte* const mine = own_part(bucket, parts.group->rank());
    const Shards::Values& values = values_of(parts, bucket);
    std::vector<BlockUpdate::Part> all;
    for (std::size_t i = values.begin; i < values.end; ++i) {
        const ShardPiece& own = values.pieces[i];
        const Param& p = parts.model.table[own.param];
        const ParamState& s = parts.gradients[own.param];
        const ddp_piece piece = piece_of(own, p, s.place);
        if (!p.data || p.dtype != bucket.dtype || piece.gradient != place_of(bucket, own))
            return nullptr;
        const auto offset =
            static_cast<std::size_t>(static_cast<std::byte*>(piece.gradient) - mine);
        all.push_back({piece, offset, dtype_size(p.dtype), &s});
    }
    return std::make_shared<BlockUpdate>(updates_.elements, std::move(all), due_);
}

void Publisher::wait(ReducerParts& parts, std::int32_t param, std::optional<void*> stream) {
    const ParamState& s = parts.gradients[param];
    if (s.bucket < 0) return;
    const auto bucket = static_cast<std::size_t>(s.bucket);
    take(parts, bucket);
    const auto parcel = find(bucket);
    if (parcel && !parcel->asked_for.exchange(true, std::memory_order_acq_rel))
        unasked_.fetch_sub(1, std::memory_order_acq_rel);
    if (!s.streams) return;
    if (stream)
        s.streams->stream()->lead(*stream);
    else
        s.streams->wait(parts.group->timeout_ms(),
                        [&parts] { parts.group->check_in_wait("a device"); });
}

// Brings the values of others to the program's memory, unless they are there: on a device in the
// order of the context's stream there.
void Publisher::take(ReducerParts& parts, std::size_t b) {
    const std::shared_ptr<Parcel> parcel = find(b);
    if (!parcel || parcel->taken.load(std::memory_order_acquire)) return;
    if (parcel->work) {
        parcel->work->wait(std::nullopt);
        if (ErrorInfo error = parcel->work->result(); !error.ok()) {
            error.bucket = static_cast<std::int32_t>(b);
            error.step = parts.totals.steps - 1;
            error.message +=
                str(" (rank ", parts.group->rank(), " was waiting for the values of ", "bucket ", b,
                    ", sent by ddp_publish after step ", error.step, ")");
            throw Error(std::move(error));
        }
    }
    const Lock lock(parcel->mutex);
    if (parcel->taken.load(std::memory_order_relaxed)) return;
    const ddp_bucket bucket = parts.layout->describe(b);
    if (parcel->work && !parcel->delivery) {
        std::vector<ddp_segment> segments;
        for (const Delivery::Target& target : targets_of(parts, bucket))
            segments.push_back({target.value,
                                static_cast<std::byte*>(bucket.buffer) + target.offset,
                                target.bytes});
        if (parcel->arrived) bucket.home->wait(*parcel->arrived);
        transfer(bucket.home, segments, DDP_U8);
    }
    transfer(bucket.home, views_of(parts, bucket), DDP_U8);
    parcel->taken.store(true, std::memory_order_release);
}

void Publisher::finish(ReducerParts& parts) {
    for (std::size_t b = 0; b < parts.layout->size(); ++b) take(parts, b);
    parts.model.streams.leave();
}

void Publisher::require_asked(const ReducerParts& parts, std::int32_t param) {
    if (unasked_.load(std::memory_order_acquire) == 0) return;
    const std::int32_t bucket = parts.gradients[param].bucket;
    if (bucket < 0) return;
    const auto parcel = find(static_cast<std::size_t>(bucket));
    if (!parcel || parcel->asked_for.load(std::memory_order_acquire)) return;
    throw CallError(
        {DDP_ERROR_INVALID_STATE,
         str("'", parts.model.table[param].name, "' has a new value since step ",
             parts.totals.steps - 1, ", and nobody has waited for it on rank ", parts.group->rank(),
             ", so this is the gradient of the old one; call ddp_wait_value before the "
             "forward pass reads the value"),
         -1, param, -1, parts.totals.steps});
}

void Publisher::drain(const Deadline& deadline) {
    const interrupt::Off off;
    const Lock lock(mutex_);
    for (const auto& [bucket, parcel] : parcels_)
        if (parcel->work && !parcel->work->wait(deadline)) return;
}

std::shared_ptr<Publisher::Parcel> Publisher::find(std::size_t bucket) {
    const Lock lock(mutex_);
    const auto found = parcels_.find(bucket);
    return found == parcels_.end() ? nullptr : found->second;
}

void Publisher::put(std::size_t bucket, std::shared_ptr<Parcel> parcel) {
    const Lock lock(mutex_);
    std::shared_ptr<Parcel>& place = parcels_[bucket];
    if (!place || place->asked_for.load(std::memory_order_acquire))
        unasked_.fetch_add(1, std::memory_order_acq_rel);
    place = std::move(parcel);
}

void Publisher::leave_group(ReducerParts& parts) {
    if (!parts.group->broken()) {
        if (!held_) require_published(parts);
        try {
            finish(parts);
        } catch (const Error& error) {
            log(LogLevel::kWarn, "the values of step ", parts.totals.steps - 1,
                " have not come to rank ", parts.group->rank(), ": ", error.what());
        }
    }
    const Lock lock(mutex_);
    let_go();
    torn_ = torn_ || due_ || std::any_of(parcels_.begin(), parcels_.end(), [](const auto& entry) {
                return !entry.second->taken.load(std::memory_order_relaxed);
            });
}

void Publisher::enter_group(ReducerParts& parts, bool differ) {
    const Lock lock(mutex_);
    // An update in blocks leaves values there that have no parcel yet.
    const bool any = (torn_ && updates()) ||
                     std::any_of(parcels_.begin(), parcels_.end(), [](const auto& entry) {
                         return !entry.second->taken.load(std::memory_order_relaxed);
                     });
    for (std::size_t b = 0; b < parts.layout->size() && any; ++b) {
        const ddp_bucket bucket = parts.layout->describe(b);
        transfer(bucket.home, views_of(parts, bucket), DDP_U8);
    }
    parcels_.clear();
    unasked_ = 0;
    due_ = torn_ = differ;
}

// The program's memory may go.
void Publisher::let_go() {
    for (const auto& [bucket, parcel] : parcels_)
        if (parcel->delivery) parcel->delivery->end();
    for (const auto& blocks : blocks_)
        if (blocks) blocks->end();
}

void Publisher::hold(bool torn) {
    held_ = true;
    due_ = torn_ = torn;
}

void Publisher::require_published(const ReducerParts& parts) const {
    if (held_)
        parts.refuse_in_step(
            "the roster has changed, and with it the pieces of each rank; call "
            "ddp_elastic_recall_shards, or set their state and call ddp_elastic_keep_shards");
    if (torn_)
        parts.refuse_in_step(
            "the group broke while ranks had different values, so some are of the step that failed "
            "and others older; load a checkpoint on every rank (ddp_shard_load), or call "
            "ddp_publish to go on with the values of each owner");
    if (due_)
        parts.refuse_in_step(
            str("each rank has updated its own shard only, and not published it, since step ",
                parts.totals.steps - 1,
                "; call ddp_publish after the optimizer on every rank, also where it changed "
                "nothing"));
}

void Publisher::on_begin(ReducerParts& parts) {
    require_published(parts);
    finish(parts);
}

void Publisher::on_end(ReducerParts& parts) {
    due_ = parts.step->has_results() && !parts.step->skipped && !updates();
}

}  // namespace libddp
