// A collective as callers ask for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ddp/backend.h"

namespace libddp {

// send null: in place. Memory of a device: with a tag that has a stream of that device. counts: the
// elements of each rank's part; `recv` is then all parts, and `count` their sum. take: gets the
// parts of the other ranks of an allgather, which need not be in `recv` then; and of an allreduce
// the blocks of the result that this rank is to look at, and of a reduce_scatter with counts those
// of its part (ddp_collective.take).
struct Collective {
    ddp_collective_kind kind = DDP_COLLECTIVE_BARRIER;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    ddp_dtype dtype = DDP_U8;
    ddp_reduce_op op = DDP_SUM;
    std::int32_t root = 0;
    ddp_device device{DDP_DEVICE_CPU, 0};
    std::shared_ptr<const std::vector<std::uint64_t>> counts{};
    // On any thread, with bytes of `recv`.
    using Take = std::function<void(const void* data, std::size_t offset, std::size_t bytes)>;
    Take take{};
    // For an all_to_all: the elements for each rank and from each rank, whose parts stand one after
    // another; `count` says nothing then. Null: `count` for each rank.
    std::shared_ptr<const std::vector<std::uint64_t>> send_counts{}, recv_counts{};
};

}  // namespace libddp
