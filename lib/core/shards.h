// Shards: which rank gets the results of which elements, updates those, and sends the new values to
// the others (DDP_CONTEXT_SHARD). A shard is fixed by the plan and the world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/param_table.h"
#include "core/plan.h"

namespace libddp {

// Orders each bucket of the plan by owners, and cuts it into sections: what all ranks own, what
// each owns its elements of, and whole parameters, which stay with the same rank in every plan.
void share_out(BucketPlan& plan, const ParamTable& table, std::int32_t world);

// Elements of a parameter that a rank owns.
struct ShardPiece {
    std::int32_t param = -1;
    std::int64_t first = 0, count = 0;
    bool replicated = false;  // other ranks own them, too
    // where their values stand in the bucket when they travel, in bytes
    std::size_t offset = 0;
};

class Shards {
public:
    // Nothing is sharded.
    Shards() = default;
    // After share_out().
    Shards(const BucketPlan& plan, const ParamTable& table, std::int32_t rank, std::int32_t world);

    // This rank's, in the order of parameters.
    const std::vector<ShardPiece>& mine() const { return mine_; }

    // The values of a bucket as they travel: the pieces of rank 0, of rank 1, and so on.
    struct Values {
        std::vector<ShardPiece> pieces;
        // of `pieces`: those of this rank
        std::size_t begin = 0, end = 0;
        std::vector<ShardPiece> replicated;  // which do not travel
        std::size_t bytes = 0;
        std::shared_ptr<const std::vector<std::uint64_t>> counts;  // bytes of each rank
    };
    // One for each bucket; none if nothing is sharded.
    const std::vector<Values>& values() const { return values_; }

private:
    std::vector<ShardPiece> mine_;
    std::vector<Values> values_;
};

}  // namespace libddp
