// A generated case: a model, the options of its context, and what each rank does in a few steps.
// Whatever a step may contain is written down here, so that the ranks and the reference follow the
// same text, and a person can read it.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "ddp/ddp.h"

namespace property {

constexpr int kMostRanks = 4;
constexpr int kMostParams = 8;

// A set of parameters: bit i is parameter i.
using Mask = unsigned;
constexpr bool has(Mask mask, int param) {
    return (mask >> param & 1) != 0;
}

enum class Backend { kThreads, kPlain, kSingle, kCaller, kShm, kStreams };
enum class Discovery { kNone, kFindUnused, kStaticGraph };

// Where a gradient lives.
enum class Home { kCopy, kView, kInPlace };

struct Param {
    ddp_dtype dtype = DDP_F32;
    int count = 1;
    Home home = Home::kCopy;
    bool delayed = false;
    int uses = 1;
    ddp_owner owner = DDP_OWNER_ELEMENTS;  // with `shard`
};

// One rank in one step.
struct Part {
    Mask comes = 0;   // gradients that it announces
    Mask once = 0;    // of those, announced only once although `uses` says more
    Mask marked = 0;  // given to ddp_mark_unused
    // seed of the order of announcements; 0: from the last parameter to the first
    unsigned order = 0;
    bool async = false;  // ddp_finalize_async and ddp_wait_param before ddp_finalize
    int weight = 1;
    unsigned vote = 0;  // bits of the program's, which it casts before the step; also the level
};

struct Step {
    bool no_sync = false;
    bool begin = false;            // with ddp_step_begin
    bool request_rebuild = false;  // before that
    bool late = false;             // freezes and skips after ddp_step_begin instead of before
    Mask frozen = 0;               // from now on exactly these
    Mask skipped = 0;
    int authority = -1;  // of the skipping
    std::array<Part, kMostRanks> parts;

    Mask gone() const { return frozen | skipped; }
};

struct Case {
    int world = 1;
    Backend backend = Backend::kThreads;
    int groups = 1;  // that take turns
    ddp_reduction reduction = DDP_REDUCTION_MEAN;
    Discovery discovery = Discovery::kNone;
    std::uint32_t flags = 0;  // without those of `discovery`
    std::uint64_t bucket_cap = 0, first_bucket_cap = 0;
    std::vector<std::uint64_t> caps;  // instead of the two, unless empty
    int rebuild_interval = 0;
    bool callback = false;  // ddp_set_reduced_callback
    bool shard = false;     // DDP_CONTEXT_SHARD, with a ddp_publish after each synced step
    bool in_step = false;   // instead of that, ddp_set_update
    bool joins = false;     // with that: DDP_CONTEXT_JOIN
    std::array<int, kMostRanks> inputs{};  // then: the steps of each rank before ddp_join
    Mask frozen = 0;                       // before ddp_commit
    std::vector<Param> params;
    std::vector<Step> steps;

    int param_count() const { return static_cast<int>(params.size()); }
    bool has_inputs(int rank, std::size_t step) const {
        return !joins || static_cast<int>(step) < inputs[static_cast<std::size_t>(rank)];
    }
    Mask all() const { return (1u << params.size()) - 1; }
    bool keeps_local_unused() const { return (flags & DDP_CONTEXT_KEEP_LOCAL_UNUSED) != 0; }
    bool votes() const { return (flags & DDP_CONTEXT_VOTES) != 0; }
    bool weighted() const { return reduction == DDP_REDUCTION_WEIGHTED_MEAN; }
    // The divisor of sums: the number of ranks, the sum of their weights, or nothing.
    int divisor() const;
};

// The sum over ranks of their weights in every step of a case with weights: a power of two, so that
// gradients that are multiples of it are exact in every floating dtype after they were weighted.
constexpr int kTotalWeight = 8;

const char* backend_name(Backend backend);
const char* reduction_name(ddp_reduction reduction);
const char* discovery_name(Discovery discovery);
std::ostream& operator<<(std::ostream& out, const Case& c);

}  // namespace property
