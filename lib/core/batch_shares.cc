#include "core/batch_shares.h"

#include <algorithm>
#include <numeric>

#include "util/error.h"

namespace libddp {
namespace {

constexpr std::int64_t kMostCost = std::int64_t{1} << 30;

// The units that rank r completes in this time.
std::int64_t share_in(std::int64_t time, std::int64_t cost, std::int64_t most) {
    return std::clamp<std::int64_t>(time / cost, 1, most);
}

std::int64_t slowest(const std::vector<std::int64_t>& shares,
                     const std::vector<std::int64_t>& cost) {
    std::int64_t time = 0;
    for (std::size_t r = 0; r < shares.size(); ++r) time = std::max(time, shares[r] * cost[r]);
    return time;
}

std::int64_t median(std::vector<std::int64_t> numbers) {
    const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
    std::nth_element(numbers.begin(), middle, numbers.end());
    return *middle;
}

}  // namespace

std::vector<std::int64_t> fastest_shares(std::int64_t units, const std::vector<std::int64_t>& cost,
                                         const std::vector<std::int64_t>& most) {
    const std::size_t world = cost.size();
    const auto completed = [&](std::int64_t time) {
        std::int64_t sum = 0;
        for (std::size_t r = 0; r < world; ++r) sum += share_in(time, cost[r], most[r]);
        return sum;
    };
    // The shortest time in which the ranks complete enough.
    std::int64_t low = 0, high = *std::max_element(cost.begin(), cost.end()) * units;
    while (low < high) {
        const std::int64_t middle = low + (high - low) / 2;
        if (completed(middle) >= units)
            high = middle;
        else
            low = middle + 1;
    }
    std::vector<std::int64_t> shares(world);
    for (std::size_t r = 0; r < world; ++r) shares[r] = share_in(low, cost[r], most[r]);
    // Some of the units that are ready only then are too many.
    std::int64_t surplus = std::accumulate(shares.begin(), shares.end(), -units);
    for (std::size_t r = world; surplus > 0; --surplus) {
        do --r;
        while (shares[r] == share_in(low - 1, cost[r], most[r]));
        --shares[r];
    }
    return shares;
}

std::vector<std::int64_t> better_shares(const std::vector<std::int64_t>& now,
                                        std::vector<std::int64_t> cost,
                                        const std::vector<std::int64_t>& most) {
    const std::int64_t greatest = *std::max_element(cost.begin(), cost.end());
    int shift = 0;
    while (greatest >> shift > kMostCost) ++shift;
    for (std::int64_t& one : cost) one = std::max<std::int64_t>(one >> shift, 1);
    const std::int64_t units = std::accumulate(now.begin(), now.end(), std::int64_t{0});
    std::vector<std::int64_t> fastest = fastest_shares(units, cost, most);
    const std::int64_t time = slowest(now, cost);
    return slowest(fastest, cost) <= time - time / 20 ? fastest : now;
}

void BatchShares::enter(Group& group, const OpTag& of, const GlobalBatch& batch) {
    const auto world = static_cast<std::size_t>(group.world());
    const std::int64_t units = batch.units();
    std::vector<std::int64_t> most(world);
    const std::int64_t mine = batch.most > 0 ? std::min(batch.most / batch.multiple, units) : units;
    group.run({DDP_COLLECTIVE_ALLGATHER, &mine, most.data(), sizeof mine, DDP_U8},
              of.with(Purpose::kShares));
    std::int64_t fits = 0;
    for (std::int64_t& one : most) {
        one = std::clamp<std::int64_t>(one, 1, units);
        fits += one;
    }
    why_none_.clear();
    if (units < group.world())
        why_none_ = str("the global batch of ", batch.samples, " samples (ddp_share_batch) has ",
                        units, " multiples of ", batch.multiple, ", fewer than the ", group.world(),
                        " ranks; each needs one");
    else if (fits < units)
        why_none_ = str("at most ", fits * batch.multiple,
                        " samples fit the ranks together (`most` of ddp_share_batch), and the "
                        "global batch has ",
                        batch.samples);
    multiple_ = batch.multiple;
    most_ = std::move(most);
    now_ = next_ = why_none_.empty()
                       ? fastest_shares(units, std::vector<std::int64_t>(world, 1), most_)
                       : std::vector<std::int64_t>(world);
    costs_.assign(world, {});
    to_skip_ = kSkipped;
}

void BatchShares::require() const {
    if (!why_none_.empty()) fail_call(DDP_ERROR_INVALID_ARGUMENT, why_none_);
}

void BatchShares::begin(const std::vector<std::int64_t>& costs, bool last) {
    now_ = next_;
    const bool known = std::all_of(costs.begin(), costs.end(), [](auto cost) { return cost > 0; });
    if (known && to_skip_ > 0) {
        --to_skip_;
    } else if (known && costs_.front().size() < kCounted) {
        for (std::size_t r = 0; r < costs.size(); ++r) costs_[r].push_back(costs[r]);
    }
    if (!last || costs_.front().size() < kCounted) return;
    std::vector<std::int64_t> medians;
    for (auto& of_rank : costs_) {
        medians.push_back(median(of_rank));
        of_rank.clear();
    }
    next_ = better_shares(now_, std::move(medians), most_);
    if (next_ != now_) to_skip_ = kSkipped;
}

BatchShares::Range BatchShares::of(std::int32_t rank, bool next) const {
    require();
    const auto& shares = next ? next_ : now_;
    const auto mine = shares.begin() + rank;
    const std::int64_t before = std::accumulate(shares.begin(), mine, std::int64_t{0});
    return {before * multiple_, (before + *mine) * multiple_};
}

}  // namespace libddp
