// Sums of numbers over ranks that travel in 8 bits (kernels/codec.h). Each rank owns a share: it
// gets the share of every rank, adds them up in the order of the ranks, and packs the sum once more
// for all. So a rank sends and receives as much as in an allreduce of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "device/scratch.h"
#include "device/stream.h"
#include "kernels/device_kernels.h"

namespace libddp {

// Where a rank's result lies that nobody else gets.
struct OwnedRange {
    std::size_t begin = 0, end = 0;
    std::int32_t owner = 0;
};

// One sum on its way. It must be kept by whoever has started it.
class CompressedSum {
public:
    // Numbers that become the result: in memory of the CPU, or of the stream's device.
    struct Item {
        void* values = nullptr;
        // It is added to the values, and gets the part that is left out: numbers of
        // compute_dtype(); null: that part is lost.
        void* error = nullptr;
        std::size_t count = 0;
        std::uint32_t number = 0;  // the same one in every step: of random numbers
        // Where it begins among the elements of the ranges; 0 without ranges.
        std::size_t begin = 0;
    };
    // The facts that all ranks give alike.
    struct Rules {
        ddp_codec codec{};
        ddp_dtype dtype = DDP_F32;   // real
        ddp_reduce_op op = DDP_SUM;  // or the mean
        std::uint64_t step = 0;      // of random numbers
        // Not null: each rank gets the result of its own ranges, in order, which cover all items.
        const std::vector<OwnedRange>* ranges = nullptr;
    };

    // this: in `self`, which lasts until the work ends. Throws as Group::submit().
    WorkPtr start(Group& group, const Rules& rules, const std::vector<Item>& items,
                  const StreamPtr& stream, std::shared_ptr<CompressedSum> self, const OpTag& tag);

private:
    // Blocks of an item that one rank owns.
    struct Piece {
        std::size_t item, first, count;
        std::int32_t owner;
        std::size_t packed;  // in the share
        std::size_t whole;   // the item's first piece
    };
    // Parts and places of a batch.
    struct Parts {
        std::vector<ddp_codec_part> parts;
        std::vector<ddp_codec_place> places;
        void clear() { parts.clear(), places.clear(); }
    };

    void cut(const std::vector<Item>& items);
    void cut_evenly(const std::vector<Item>& items);
    bool fits(const std::vector<Item>& items, std::size_t capacity);
    void cut_by_ranges(const std::vector<Item>& items);
    void add_piece(std::size_t item, std::size_t first, std::size_t count, std::int32_t owner);
    void lay_out(const std::vector<Item>& items);
    ddp_codec_batch batch(const Parts& parts, const void* gathered, std::size_t size,
                          std::int32_t world, std::byte* sent, std::uint32_t drawer) const;
    std::size_t share_begin(std::int32_t rank) const {
        return static_cast<std::size_t>(rank) * share_;
    }
    void encode();
    void recode();
    void decode();
    void decode_own();

    Rules rules_;
    std::int32_t rank_ = 0, world_ = 1;
    StreamPtr stream_;
    std::vector<Piece> pieces_;
    std::vector<std::size_t> used_;  // bytes of each share
    std::size_t share_ = 0;          // bytes of the largest share
    Parts all_, own_;                // pieces; those of this rank's share
    std::byte *sent_ = nullptr, *received_ = nullptr, *result_ = nullptr;
    ScratchMemory messages_, losses_, scratch_;
};

}  // namespace libddp
