// The shares of a global batch, by the times that ranks take. What include/ddp/batch_share.h
// promises. All of it is arithmetic of integers, so that ranks on different processors agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/tag.h"

namespace libddp {

// The batch that a program asks to have shared.
struct GlobalBatch {
    static constexpr std::int64_t kMostSamples = std::int64_t{1} << 32;

    std::int64_t samples = 0;  // 0: it does not ask
    std::int64_t multiple = 1;
    std::int64_t most = 0;  // that fit this rank; 0: any. Ranks may differ

    std::int64_t units() const { return samples / multiple; }
};

// Shares in units that sum to `units`, each from 1 to most[r], of which the greatest of cost[r] *
// share[r] is as small as it can be. Needs most.size() <= units <= the sum of most, and costs from
// 1 to 2^30. Of ranks that are alike the lower ones get more.
std::vector<std::int64_t> fastest_shares(std::int64_t units, const std::vector<std::int64_t>& cost,
                                         const std::vector<std::int64_t>& most);

// The same, or `now` where that takes little longer. cost: of a unit, any positive number.
std::vector<std::int64_t> better_shares(const std::vector<std::int64_t>& now,
                                        std::vector<std::int64_t> cost,
                                        const std::vector<std::int64_t>& most);

class BatchShares {
public:
    // Steps of which the median counts, and steps before them that do not.
    static constexpr std::size_t kCounted = 15;
    static constexpr int kSkipped = 2;

    struct Range {
        std::int64_t begin = 0, end = 0;
    };

    // Collective. Another group, or the first: equal shares.
    void enter(Group& group, const OpTag& of, const GlobalBatch& batch);
    // Throws, on all ranks, if they cannot hold the batch. An elastic job may get ranks that can.
    void require() const;
    // A step begins, for which ranks have exchanged what a sample cost in the last step; 0: unknown.
    // last: a window ends with it, so the shares of the next one may be others.
    void begin(const std::vector<std::int64_t>& costs, bool last);
    // The share of a rank in the step that has begun, or in the next one. In samples.
    Range of(std::int32_t rank, bool next) const;

private:
    std::int64_t multiple_ = 1;
    std::vector<std::int64_t> most_;                // units that fit each rank
    std::vector<std::int64_t> now_, next_;          // shares in units
    std::vector<std::vector<std::int64_t>> costs_;  // of each rank in the steps that count
    int to_skip_ = kSkipped;
    std::string why_none_;  // there are no shares; empty: there are
};

}  // namespace libddp
