// A model as the program registered it, and how the program wants it trained. ddp_commit makes it
// immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/tag.h"
#include "core/batch_shares.h"
#include "core/device_streams.h"
#include "core/param_table.h"
#include "core/plan.h"
#include "kernels/arithmetic.h"

namespace libddp {

// The fate of a number that is NaN or infinite.
enum class Nonfinite : std::uint8_t { kPass, kRefuse, kSkip };

struct ReducerOptions {
    static constexpr std::size_t kUsualCap = std::size_t{25} << 20;
    // Where buckets are reduced by the thread that fills them: few enough bytes that they are still
    // in its cache.
    static constexpr std::size_t kCachedCap = std::size_t{1} << 20;
    std::vector<std::size_t> caps = make_caps(0, kUsualCap);
    bool tune_caps = false;     // search for the cap, from caps.back() on
    std::size_t first_cap = 0;  // with tune_caps: the first argument of make_caps for every cap
    bool mean = true;
    bool rebuild = true;
    bool consensus_order = false;
    std::int64_t rebuild_interval = 0;
    bool find_unused = false;
    bool static_graph = false;
    bool keep_local_unused = false;
    bool accumulate = false;   // what an unused gradient holds counts
    bool skip_unused = false;  // agree bucket by bucket whether it is used at all
    bool needs_begin = false;  // every step starts with begin_step()
    bool check = false;        // look for mistakes of the program: StepCheck
    bool shard = false;        // each rank gets the results of its own elements: Shards
    bool votes = false;        // bits of each rank travel with each step: StepVotes
    // Synced steps between comparisons of values: ValueCheck.
    std::int64_t check_interval = 0, verify_interval = 0;
    bool verify_buffers = false;
    Nonfinite nonfinite = Nonfinite::kPass;
};

struct ContextOptions {
    ReducerOptions reducer;
    bool initial_broadcast = true;
    bool buffer_broadcast = true;
    bool weighted = false;
    bool join = false;
    bool divide_by_present = false;
    bool stop_at_first_join = false;

    // All that must be the same on every rank, as a person reads it.
    std::string text() const;
};

// A norm that the program asks for.
struct TrackedNorm {
    cpu::NormKind kind = cpu::NormKind::kSquares;
    bool all = false;                  // params follow at ddp_commit
    std::vector<std::int32_t> params;  // in their order

    std::string text() const;
};

struct Model {
    const ContextOptions options;
    ParamTable table;
    ContextStreams streams;  // of all devices in the table
    std::vector<TrackedNorm> norms{};
    GlobalBatch batch{};
    std::shared_ptr<Traffic> averages = std::make_shared<Traffic>();  // of parameters

    // All that must be the same on every rank, besides the table's lines.
    std::string text() const;
    // Another norm; its number.
    std::int32_t track(TrackedNorm norm);
    // Takes the parameters of norms of all.
    void complete_norms();

    // The program may write a gradient that is checked at any time, so that gradient is copied and
    // never reduced in place.
    void copy_if_checked(Param& param) const;
    // Throws what is wrong with the whole of it.
    void check() const;
    // Parameters and buffers.
    std::vector<const Param*> all() const;
    std::vector<const Param*> buffers() const;
    std::vector<std::string> param_names() const;
    // Whether ranks exchange at the beginning of each step.
    bool exchanges() const { return options.join || options.weighted; }

private:
    void check_norms() const;
};

}  // namespace libddp
