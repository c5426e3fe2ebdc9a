// What ranks compare before each collective, so that a disagreement is a sentence and not a hang.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/tag.h"
#include "ddp/backend.h"

namespace libddp {

struct Signature {
    std::uint64_t plan;
    std::int64_t step;
    std::int64_t sequence;
    std::uint64_t count;
    std::int32_t bucket;
    std::int32_t kind;
    std::int32_t dtype;
    std::int32_t op;
    std::int32_t root;
    std::int32_t device;  // the kind of memory: ranks whose memory differs would cut the data differently
};
static_assert(sizeof(Signature) == 56);

// "allreduce of 1000 f32 (sum), bucket 2 of step 7".
std::string describe(const Signature& signature);

// The whole sentence: who does what, and which of the differences matters.
std::string describe_mismatch(const Signature& mine, std::int32_t my_rank, const Signature& theirs,
                              std::int32_t their_rank, std::string_view label);

}  // namespace libddp
