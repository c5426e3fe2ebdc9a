#include "hooks/compressed_sum.h"

#include <algorithm>
#include <utility>

#include "comm/pieces.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/eight_bits.h"
#include "kernels/on_device.h"

namespace libddp {

WorkPtr CompressedSum::start(Group& group, const Rules& rules, const std::vector<Item>& items,
                             const StreamPtr& stream, std::shared_ptr<CompressedSum> self,
                             const OpTag& tag) {
    rules_ = rules;
    rank_ = group.rank();
    world_ = group.world();
    stream_ = stream;
    cut(items);
    lay_out(items);
    encode();
    const OpTag kept = tag.keeping(self, messages_.on_device());
    const ddp_device device = device_of_stream(stream_);
    const WorkPtr exchanged = group.submit(
        {DDP_COLLECTIVE_ALL_TO_ALL, sent_, received_, share_, DDP_U8, DDP_SUM, 0, device}, kept);
    if (rules_.ranges)
        return exchanged->then(
            [self = std::move(self), used = tag.memory.used](const OpTag&) -> WorkPtr {
                self->decode_own();
                return nullptr;
            },
            true, tag);
    return exchanged
        ->then(
            [self, &group, device](const OpTag& inherited) {
                self->recode();
                return group.submit({DDP_COLLECTIVE_ALLGATHER, nullptr, self->result_, self->share_,
                                     DDP_U8, DDP_SUM, 0, device},
                                    inherited.keeping(self, self->messages_.on_device()));
            },
            true, tag)
        ->then(
            // The memory of the values too must last until here.
            [self, used = tag.memory.used](const OpTag&) -> WorkPtr {
                self->decode();
                return nullptr;
            },
            true, tag);
}

void CompressedSum::cut(const std::vector<Item>& items) {
    rules_.ranges ? cut_by_ranges(items) : cut_evenly(items);
    share_ = align_packed(*std::max_element(used_.begin(), used_.end()));
}

// Between blocks, so that the largest share is about as small as it can be.
void CompressedSum::cut_evenly(const std::vector<Item>& items) {
    const std::size_t block = packed_size(rules_.codec, rules_.dtype, rules_.codec.block);
    std::size_t bytes = 0, largest = 1;
    for (const Item& item : items) {
        bytes += packed_size(rules_.codec, rules_.dtype, item.count);
        largest = std::max(largest, packed_size(rules_.codec, rules_.dtype,
                                                std::min(item.count, rules_.codec.block)));
    }
    const auto ranks = static_cast<std::size_t>(world_);
    std::size_t capacity = std::max((bytes + ranks - 1) / ranks, largest);
    while (!fits(items, capacity)) capacity += std::max<std::size_t>(8, block / 8);
}

// Gives each rank in turn as many blocks as it has room for.
bool CompressedSum::fits(const std::vector<Item>& items, std::size_t capacity) {
    pieces_.clear();
    used_.assign(static_cast<std::size_t>(world_), 0);
    const std::size_t block = rules_.codec.block;
    const std::size_t bytes = packed_size(rules_.codec, rules_.dtype, block);
    std::int32_t owner = 0;
    for (std::size_t i = 0; i < items.size(); ++i)
        for (std::size_t first = 0; first < items[i].count;) {
            const std::size_t left = items[i].count - first,
                              room = capacity - used_[static_cast<std::size_t>(owner)];
            std::size_t count = std::min(left, room / bytes * block);
            const std::size_t rest = left - count;
            // the last block is a shorter one
            if (rest > 0 && rest < block && packed_size(rules_.codec, rules_.dtype, left) <= room)
                count = left;
            if (count > 0) {
                add_piece(i, first, count, owner);
                first += count;
            } else if (++owner == world_) {
                return false;
            }
        }
    return true;
}

void CompressedSum::cut_by_ranges(const std::vector<Item>& items) {
    pieces_.clear();
    used_.assign(static_cast<std::size_t>(world_), 0);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::size_t begin = items[i].begin, end = begin + items[i].count;
        for (const OwnedRange& range : *rules_.ranges) {
            const std::size_t from = std::max(begin, range.begin), to = std::min(end, range.end);
            if (from < to) add_piece(i, from - begin, to - from, range.owner);
        }
    }
}

void CompressedSum::add_piece(std::size_t item, std::size_t first, std::size_t count,
                              std::int32_t owner) {
    std::size_t& used = used_[static_cast<std::size_t>(owner)];
    const bool another = !pieces_.empty() && pieces_.back().item == item;
    pieces_.push_back(
        {item, first, count, owner, used, another ? pieces_.back().whole : pieces_.size()});
    used += packed_size(rules_.codec, rules_.dtype, count);
}

// After all is cut, because memory moves when it grows.
void CompressedSum::lay_out(const std::vector<Item>& items) {
    const std::size_t value = dtype_size(rules_.dtype),
                      real = dtype_size(compute_dtype(rules_.dtype));
    const std::size_t message = share_ * static_cast<std::size_t>(world_);
    sent_ = messages_.require(3 * message, stream_);
    received_ = sent_ + message;
    result_ = received_ + message;
    std::size_t own = 0;
    for (const Piece& piece : pieces_)
        if (piece.owner == rank_ && items[piece.item].error) own += piece.count;
    std::byte* loss = losses_.require(own * real, stream_);
    all_.clear();
    own_.clear();
    for (const Piece& piece : pieces_) {
        const Item& item = items[piece.item];
        auto* values = static_cast<std::byte*>(item.values) + piece.first * value;
        auto* error =
            item.error ? static_cast<std::byte*>(item.error) + piece.first * real : nullptr;
        ddp_codec_place place{piece.first, item.number, static_cast<std::uint32_t>(piece.whole),
                              nullptr};
        if (piece.owner == rank_) {
            if (error && !rules_.ranges) {
                place.loss = loss;
                loss += piece.count * real;
            }
            own_.parts.push_back(
                {rules_.ranges ? values : nullptr, nullptr, piece.count, piece.packed});
            own_.places.push_back(place);
        }
        all_.parts.push_back({values, error, piece.count, share_begin(piece.owner) + piece.packed});
        all_.places.push_back(place);
    }
}

ddp_codec_batch CompressedSum::batch(const Parts& parts, const void* gathered, std::size_t size,
                                     std::int32_t world, std::byte* sent,
                                     std::uint32_t drawer) const {
    ddp_codec_batch batch{};
    batch.codec = rules_.codec;
    batch.parts = parts.parts.data();
    batch.places = parts.places.data();
    batch.part_count = parts.parts.size();
    batch.dtype = rules_.dtype;
    batch.world = world;
    batch.gathered = const_cast<void*>(gathered);
    batch.size = size;
    batch.sent = sent;
    batch.step = rules_.step;
    batch.drawer = drawer;
    batch.keeps = rules_.ranges != nullptr;
    return batch;
}

void CompressedSum::encode() {
    ddp_codec_batch packed = batch(all_, nullptr, 0, 0, sent_, static_cast<std::uint32_t>(rank_));
    if (!stream_) return cpu::encode(packed);
    packed.scratch = scratch_.require(on_device::encode_scratch(*stream_, packed), stream_);
    on_device::encode(*stream_, packed);
}

void CompressedSum::recode() {
    const double scale = rules_.op == DDP_AVG ? 1.0 / world_ : 1.0;
    const ddp_codec_batch packed =
        batch(own_, received_, share_, world_, result_ + share_begin(rank_), eight_bits::kOfTheSum);
    stream_ ? on_device::recode(*stream_, packed, scale) : cpu::recode(packed, scale);
}

void CompressedSum::decode() {
    const ddp_codec_batch packed = batch(all_, result_, 0, 1, sent_, 0);
    stream_ ? on_device::decode(*stream_, packed, 1) : cpu::decode(packed, 1);
}

void CompressedSum::decode_own() {
    const double scale = rules_.op == DDP_AVG ? 1.0 / world_ : 1.0;
    const ddp_codec_batch packed = batch(own_, received_, share_, world_, nullptr, 0);
    stream_ ? on_device::decode(*stream_, packed, scale) : cpu::decode(packed, scale);
}

}  // namespace libddp
