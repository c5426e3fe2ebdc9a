#include "core/shards.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "device/memory.h"
#include "kernels/dtype.h"

namespace libddp {
namespace {

using Counts = std::vector<std::uint64_t>;

// The owner of each parameter that one rank owns: the most expensive first, each to the rank that
// has least. -1: of any other parameter.
std::vector<std::int32_t> balance(const ParamTable& table, std::int32_t world) {
    const auto cost = [&table](std::int32_t id) {
        return table[id].gradient.cost != 0 ? table[id].gradient.cost
                                            : static_cast<double>(table[id].count);
    };
    std::vector<std::int32_t> owners(table.params().size(), -1), order;
    for (std::int32_t id = 0; id < table.size(); ++id)
        if (table[id].gradient.owner == Owner::kOne) order.push_back(id);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return cost(a) > cost(b); });
    std::vector<double> load(static_cast<std::size_t>(world));
    for (const std::int32_t id : order) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += cost(id);
        owners[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(least - load.begin());
    }
    return owners;
}

// Parts as equal as whole cache lines, of which `count` elements are so many, allow. turn: the rank
// that is the next to get a line more.
Counts even_parts(std::size_t count, std::size_t line, std::int32_t world, std::size_t& turn) {
    const auto ranks = static_cast<std::size_t>(world);
    Counts counts(ranks, count / line / ranks * line);
    for (std::size_t i = 0; i < count / line % ranks; ++i) counts[turn++ % ranks] += line;
    return counts;
}

// The end of a tensor in its bucket, with the gap behind it, in elements.
std::size_t end_of(const PlanBucket& bucket, std::size_t i) {
    const bool last = i + 1 == bucket.params.size();
    return (last ? bucket.bytes : bucket.offsets[i + 1]) / dtype_size(bucket.dtype);
}

// The rank's part of a section.
struct Part {
    std::size_t begin, end;
};

Part part_of(const BucketSection& section, std::int32_t rank) {
    if (!section.counts) return {section.begin, section.begin + section.count};
    const auto at = section.counts->begin() + rank;
    const auto before = std::accumulate(section.counts->begin(), at, std::uint64_t{0});
    const std::size_t begin = section.begin + static_cast<std::size_t>(before);
    return {begin, begin + static_cast<std::size_t>(*at)};
}

void share_out(PlanBucket& bucket, const ParamTable& table, const std::vector<std::int32_t>& owners,
               std::int32_t world, std::size_t& turn) {
    const auto place = [&](std::int32_t id) {
        const Owner owner = table[id].gradient.owner;
        return std::tuple(owner != Owner::kAll, owner == Owner::kOne,
                          owners[static_cast<std::size_t>(id)]);
    };
    std::stable_sort(bucket.params.begin(), bucket.params.end(),
                     [&](std::int32_t a, std::int32_t b) { return place(a) < place(b); });
    bucket.offsets.clear();
    bucket.sections.clear();
    bucket.bytes = 0;
    const std::size_t item = dtype_size(bucket.dtype);
    Counts whole(static_cast<std::size_t>(world));
    for (const std::int32_t id : bucket.params) {
        const std::size_t bytes = align_up(table[id].gradient.bytes);
        bucket.offsets.push_back(bucket.bytes);
        bucket.bytes += bytes;
        if (table[id].gradient.owner == Owner::kOne)
            whole[static_cast<std::size_t>(owners[static_cast<std::size_t>(id)])] += bytes / item;
    }
    std::size_t begin = 0;
    for (const Owner owner : {Owner::kAll, Owner::kEachItsElements, Owner::kOne}) {
        std::size_t end = begin;
        for (std::size_t i = 0; i < bucket.params.size(); ++i)
            if (table[bucket.params[i]].gradient.owner == owner) end = end_of(bucket, i);
        if (end == begin) continue;
        BucketSection& section = bucket.sections.emplace_back(BucketSection{begin, end - begin});
        if (owner == Owner::kEachItsElements)
            section.counts = std::make_shared<const Counts>(
                even_parts(section.count, kAlignment / item, world, turn));
        if (owner == Owner::kOne) section.counts = std::make_shared<const Counts>(whole);
        begin = end;
    }
}

}  // namespace

void share_out(BucketPlan& plan, const ParamTable& table, std::int32_t world) {
    const std::vector<std::int32_t> owners = balance(table, world);
    std::size_t turn = 0;
    for (PlanBucket& bucket : plan.buckets) share_out(bucket, table, owners, world, turn);
}

Shards::Shards(const BucketPlan& plan, const ParamTable& table, std::int32_t rank,
               std::int32_t world) {
    for (const PlanBucket& bucket : plan.buckets) {
        const std::size_t item = dtype_size(bucket.dtype);
        Values values;
        Counts counts;
        // Elements begin .. end of the bucket belong to a rank.
        const auto add = [&](Part part, bool replicated, std::vector<ShardPiece>& pieces) {
            for (std::size_t i = 0; i < bucket.params.size(); ++i) {
                const Param& p = table[bucket.params[i]];
                const std::size_t at = bucket.offsets[i] / item;
                const std::size_t first = std::max(part.begin, at);
                const std::size_t last = std::min(part.end, at + static_cast<std::size_t>(p.count));
                if (first >= last) continue;
                pieces.push_back({bucket.params[i], static_cast<std::int64_t>(first - at),
                                  static_cast<std::int64_t>(last - first), replicated});
            }
        };
        for (std::int32_t r = 0; r < world; ++r) {
            if (r == rank) values.begin = values.pieces.size();
            const std::size_t before = values.bytes, pieces_before = values.pieces.size();
            for (const BucketSection& section : bucket.sections)
                if (section.counts) add(part_of(section, r), false, values.pieces);
            for (std::size_t i = pieces_before; i < values.pieces.size(); ++i) {
                ShardPiece& piece = values.pieces[i];
                piece.offset = values.bytes;
                values.bytes += align_up(static_cast<std::size_t>(piece.count) *
                                         dtype_size(table[piece.param].dtype));
            }
            counts.push_back(values.bytes - before);
            if (r == rank) values.end = values.pieces.size();
        }
        values.counts = std::make_shared<const Counts>(std::move(counts));
        const auto own = values.pieces.begin();
        mine_.insert(mine_.end(), own + static_cast<std::ptrdiff_t>(values.begin),
                     own + static_cast<std::ptrdiff_t>(values.end));
        for (const BucketSection& section : bucket.sections)
            if (!section.counts) add(part_of(section, rank), true, values.replicated);
        mine_.insert(mine_.end(), values.replicated.begin(), values.replicated.end());
        values_.push_back(std::move(values));
    }
    std::stable_sort(mine_.begin(), mine_.end(),
                     [](const ShardPiece& a, const ShardPiece& b) { return a.param < b.param; });
}

}  // namespace libddp
