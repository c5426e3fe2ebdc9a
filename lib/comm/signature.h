// The facts that ranks compare before each collective, so that a disagreement is a sentence and not
// a hang.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "comm/tag.h"
#include "ddp/backend.h"

namespace libddp {

struct Signature : OpFacts {
    std::int32_t kind;
    std::int32_t dtype;
    std::int32_t op;
    std::int32_t root;
    // the kind of memory: ranks whose memory differs would cut the data differently
    std::int32_t device;
    std::int64_t sequence;
    std::uint64_t count;
    // a hash of the sizes of ranks' parts; 0: they are alike; kUnevenParts: ranks tell each other
    // those of an all_to_all
    std::uint64_t parts = 0;
};
constexpr std::uint64_t kUnevenParts = 1;
static_assert(sizeof(Signature) == 88, "it travels as bytes: no padding");

// "allreduce of 1000 f32 (sum), bucket 2 of step 7"; "allreduce of 4 f32 (sum), called by the
// program itself".
std::string describe(const Signature& signature);

// The short name of an operation for which a rank waits: "bucket 2 of step 7", "an allreduce".
struct WaitTarget {
    std::int64_t step = -1;
    std::int32_t bucket = -1;
    std::int32_t kind = 0;
};
std::string describe(const WaitTarget& target);

using ParamName = std::function<std::string(std::int32_t context, std::int32_t param)>;

// The whole sentence: who does what, and which of the differences matters. label: of what this rank
// does. param_name: of a parameter of a context of the group; empty: unknown.
std::string describe_mismatch(const Signature& mine, std::int32_t my_rank, const Signature& theirs,
                              std::int32_t their_rank, std::string_view label,
                              const ParamName& param_name);

// The first parameter that one of two ranks has frozen and the other has not; -1: none is known.
std::int32_t frozen_on_one(const Signature& a, const Signature& b);

// The advice where another rank did not come to this operation; empty, or to stand behind another
// sentence.
std::string advice_for(const Signature& signature);

}  // namespace libddp
