// An all_to_all whose ranks each know only what they send and what they expect: whether that fits,
// and what everyone sends.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/collective.h"
#include "util/error.h"

namespace libddp {

// Throws INVALID_ARGUMENT for memory or counts that cannot be those of an all_to_all.
void validate_all_to_all(const Collective& collective, std::int32_t world);

// The elements that this rank sends in all.
std::size_t sent_elements(const Collective& collective, std::int32_t world);

// The numbers that each rank tells the others: for each rank what it sends to it, then for each
// what it expects of it.
std::vector<std::uint64_t> told_counts(const Collective& collective);

// told: those of all ranks, in their order. counts: becomes ddp_collective.counts. Every rank
// computes this from the same numbers, and so finds the same.
ErrorInfo agree_on_counts(const std::vector<std::uint64_t>& told, std::int32_t world,
                          ddp_dtype dtype, std::vector<std::uint64_t>& counts);

}  // namespace libddp
