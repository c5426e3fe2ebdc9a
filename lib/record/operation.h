// The kind of an operation and its purpose: in signatures, in messages and in records.
#pragma once

#include <cstdint>

namespace libddp {

// The purpose of an operation of libddp's own that belongs to no bucket. Ranks compare it, and
// records keep it: a new one comes at the end.
enum class Purpose : std::int32_t {
    kProgram,  // the program's own, or a bucket's
    kSplit,
    kRoundRobin,
    kModel,
    kPlan,
    kState,
    kStepBegin,
    kReadyOrder,
    kSkip,
    kSetGroup,
    kUsedMap,
    kDiscard,
    kAverage,
    kValues,
    kEndOfCheck,
    kNumbers,
    kGraph,    // a bucket's, of a step that is captured into a graph
    kPublish,  // a bucket's: new values of parameters
    kNorm,
    kUpdate,
    kShardState,
    kKeptShards,
    kVotes,
    kShares
};

// The part of libddp that calls such an operation; null for what is the program's.
const char* purpose_name(Purpose purpose);

// "allreduce", for a value of ddp_collective_kind.
const char* collective_name(std::int32_t kind);

}  // namespace libddp
