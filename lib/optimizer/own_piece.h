// Elements of one parameter that this rank updates, and what an optimizer keeps of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/param_table.h"
#include "core/shards.h"
#include "device/stream.h"
#include "kernels/dtype.h"

namespace libddp {

class OwnPiece {
public:
    // Numbers for each element, or one for all of them.
    struct Array {
        const char* name;
        std::shared_ptr<void> numbers;
    };

    // The parameter must outlive it. Values of f16 and bf16 have a master. stream: in whose order a
    // device steps the piece, and has its arrays; null on the CPU.
    OwnPiece(const Param& param, const ShardPiece& range, StreamPtr stream);

    const Param& param() const { return *param_; }
    const ShardPiece& range() const { return range_; }
    const StreamPtr& stream() const { return stream_; }
    std::size_t count() const { return static_cast<std::size_t>(range_.count); }
    // The type of the state, and that in which updates are computed.
    ddp_dtype dtype() const { return dtype_; }
    // Updates of the parameter. The program may load another number.
    std::int64_t& steps() { return steps_; }
    const std::vector<Array>& arrays() const { return arrays_; }
    // Zeros, unless there is one.
    void add_array(const char* name);
    // Numbers from element `first` of the piece on; null if there is no such array.
    void* array(std::string_view name, std::size_t first) const;
    std::byte* value(std::size_t first) const;

    // On the CPU. Calls body(values, gradients, first, count) for `size` elements of the piece from
    // `begin` on, one block after another; both are numbers of dtype(), and the values may be
    // changed. gradient: of the first of them; null if body wants none.
    template <class Body>
    void update(const void* gradient, std::size_t begin, std::size_t size, Body body) {
        Block block;
        const std::size_t item = dtype_size(param_->gradient.dtype);
        for (std::size_t at = 0; at < size; at += kBlock) {
            const std::size_t n = std::min(kBlock, size - at);
            const auto* const from = static_cast<const std::byte*>(gradient);
            read(block, from ? from + at * item : nullptr, begin + at, n);
            body(block.values, block.gradients, begin + at, n);
            write(block, begin + at, n);
        }
    }
    // For all of them.
    template <class Body>
    void update(const void* gradient, Body body) {
        update(gradient, 0, count(), body);
    }

    // Most elements of a block: few enough for the L1 cache.
    static constexpr std::size_t kBlock = 1024;
    static constexpr const char* kMaster = "master";

private:
    struct Block {
        void* values = nullptr;
        const void* gradients = nullptr;
        alignas(64) std::byte converted[kBlock * sizeof(double)];
    };

    void read(Block& block, const void* gradient, std::size_t first, std::size_t n) const;
    void write(const Block& block, std::size_t first, std::size_t n) const;

    const Param* param_;
    ShardPiece range_;
    StreamPtr stream_;
    ddp_dtype dtype_;
    std::int64_t steps_ = 0;
    std::vector<Array> arrays_;
};

}  // namespace libddp
