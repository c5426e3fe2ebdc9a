// ddp-bench allreduce: one ddp_allreduce at a time, in place, of several groups side by side; with
// --groups or --pieces several that are under way together.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "benchmarks.h"
#include "groups.h"
#include "limit.h"
#include "measure.h"
#include "memory.h"

namespace bench {
namespace {

ddp_dtype find_dtype(const std::string& name) {
    for (ddp_dtype dtype = DDP_F16; dtype <= DDP_C128; ++dtype) {
        if (name == ddp_dtype_name(dtype)) return dtype;
    }
    throw std::invalid_argument("no element type is called " + name);
}

// A group, under the name that its rows have.
struct Competitor {
    ddp_group* group;
    std::string label;
};

// The subject of one row: a group's allreduce of one size, in one kind of memory.
class Target {
public:
    Target(const Competitor& competitor, const std::string& mode, std::size_t count,
           const Options& options)
        : competitor_(competitor),
          mode_(mode),
          count_(count),
          dtype_(find_dtype(options.dtype)),
          groups_(options.groups),
          pieces_(
              std::min<std::size_t>(count, options.pieces > 0 ? options.pieces : options.groups)),
          memory_(collective_memory(competitor.group, mode, bytes())) {
        check_sum();
    }

    double reduce() const {
        const double start = now_ms();
        if (pieces_ > 1)
            reduce_in_pieces();
        else
            reduce_as(count_, dtype_);
        return now_ms() - start;
    }

    Row row(const std::vector<double>& series) const {
        Row row = make_row("allreduce", ddp_group_world_size(competitor_.group),
                           competitor_.label.c_str(), static_cast<std::int64_t>(bytes()), series);
        row["dtype"] = ddp_dtype_name(dtype_);
        row["memory"] = mode_;
        row["groups"] = groups_;
        row["pieces"] = pieces_;
        row["tail"] = summarize(series).p99 / median(series);
        return row;
    }

private:
    std::size_t bytes() const { return count_ * ddp_dtype_size(dtype_); }

    void reduce_as(std::size_t count, ddp_dtype dtype) const {
        Result result;
        result.check(ddp_allreduce(competitor_.group, nullptr, memory_.get(), count, dtype, DDP_SUM,
                                   nullptr, result));
    }

    // All on their way at once.
    void reduce_in_pieces() const {
        const std::size_t item = ddp_dtype_size(dtype_);
        auto* memory = static_cast<std::byte*>(memory_.get());
        std::vector<Work> works;
        Result result;
        for (std::size_t i = 0; i < pieces_; ++i) {
            const std::size_t begin = count_ * i / pieces_, end = count_ * (i + 1) / pieces_;
            ddp_work* work = nullptr;
            result.check(ddp_allreduce(competitor_.group, nullptr, memory + begin * item,
                                       end - begin, dtype_, DDP_SUM, &work, result));
            works.emplace_back(work);
        }
        for (const Work& work : works) result.check(ddp_work_wait(work.get(), 0, result));
    }

    // A benchmark of wrong sums would be worth nothing. Bytes of 1 are, as one-byte integers, ones.
    // Leaves zeros: any other value would grow with each sum, until it overflows and may be slow to
    // add.
    void check_sum() const {
        auto* bytes_of_memory = static_cast<unsigned char*>(memory_.get());
        std::memset(bytes_of_memory, 1, bytes());
        reduce_as(bytes(), DDP_U8);
        const auto expected = static_cast<unsigned char>(ddp_group_world_size(competitor_.group));
        for (std::size_t i = 0; i < bytes(); ++i) {
            if (bytes_of_memory[i] != expected)
                throw std::runtime_error(competitor_.label + " gave a wrong sum");
        }
        std::memset(bytes_of_memory, 0, bytes());
    }

    const Competitor& competitor_;
    std::string mode_;
    std::size_t count_;
    ddp_dtype dtype_;
    unsigned groups_;
    std::size_t pieces_;
    Memory memory_;
};

// The limit is one of memory: there is none where ranks are on several hosts, or where one rank has
// nothing to do.
bool has_limit(int world) {
    ddp_environment environment{};
    environment.struct_size = sizeof environment;
    return world > 1 && ddp_environment_get(&environment, nullptr) == DDP_OK &&
           environment.local_world_size == world;
}

std::vector<Row> measure_size(const std::vector<Competitor>& competitors, const Options& options,
                              std::uint64_t bytes) {
    const std::size_t item = ddp_dtype_size(find_dtype(options.dtype));
    const std::size_t count = std::max<std::size_t>(1, bytes / item);
    std::vector<Target> targets;
    for (const Competitor& competitor : competitors) {
        for (const std::string& mode : options.memory)
            targets.emplace_back(competitor, mode, count, options);
    }
    std::vector<Iteration> loops;
    for (const Target& target : targets) loops.push_back([&target] { return target.reduce(); });

    ddp_group* const control = competitors.front().group;
    const int world = ddp_group_world_size(control);
    std::optional<Limit> limit;
    if (has_limit(world)) {
        limit.emplace(world, ddp_group_rank(control), count * item);
        loops.push_back([&limit] { return limit->pass(); });
    }
    const Budget budget{options.iterations(),
                        options.seconds * static_cast<double>(targets.size())};
    const auto series = measure(ranks_of(control), budget, loops);

    std::vector<Row> rows;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        rows.push_back(targets[i].row(series[i]));
        if (!limit) continue;
        rows.back()["limit_ms"] = median(series.back());
        rows.back()["fraction"] = median(series.back()) / median(series[i]);
    }
    return rows;
}

}  // namespace

std::vector<Row> run_allreduce(ddp_group* first, const Options& options) {
    std::vector<Group> others;
    std::vector<Competitor> competitors{{first, label(first, options.backends.front())}};
    for (std::size_t i = 1; i < options.backends.size(); ++i) {
        others.push_back(join(options.backends[i], options, "competitor-" + std::to_string(i)));
        competitors.push_back(
            {others.back().get(), label(others.back().get(), options.backends[i])});
    }
    std::vector<Row> rows;
    for (const std::uint64_t bytes : options.bytes) {
        for (Row& row : measure_size(competitors, options, bytes)) rows.push_back(std::move(row));
    }
    return rows;
}

}  // namespace bench
