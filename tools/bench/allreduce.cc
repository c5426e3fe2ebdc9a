// ddp-bench allreduce: one ddp_allreduce at a time, in place; one for each group where several take turns.
#include <cstddef>
#include <cstring>
#include <utility>

#include "benchmarks.h"
#include "measure.h"

namespace bench {
namespace {

ddp_dtype find_dtype(const std::string& name) {
    for (ddp_dtype dtype = DDP_F16; dtype <= DDP_C128; ++dtype) {
        if (name == ddp_dtype_name(dtype)) return dtype;
    }
    throw std::invalid_argument("no element type is called " + name);
}

void reduce(ddp_group* group, void* memory, std::size_t count, ddp_dtype dtype) {
    Result result;
    result.check(ddp_allreduce(group, nullptr, memory, count, dtype, DDP_SUM, nullptr, result));
}

// A benchmark of wrong sums would be worth nothing. Bytes of 1 are, as one-byte integers, ones.
void check_sum(ddp_group* group) {
    std::vector<unsigned char> ones(4099, 1);
    reduce(group, ones.data(), ones.size(), DDP_U8);
    const auto expected = static_cast<unsigned char>(ddp_group_world_size(group));
    for (const unsigned char sum : ones) {
        if (sum != expected) throw std::runtime_error("ddp_allreduce gave a wrong sum");
    }
}

// Elements in pieces, all on their way at once.
void reduce_in_pieces(ddp_group* group, std::byte* memory, std::size_t count, ddp_dtype dtype, std::size_t pieces) {
    const std::size_t item = ddp_dtype_size(dtype);
    std::vector<Work> works;
    Result result;
    for (std::size_t i = 0; i < pieces; ++i) {
        const std::size_t begin = count * i / pieces, end = count * (i + 1) / pieces;
        ddp_work* work = nullptr;
        result.check(ddp_allreduce(group, nullptr, memory + begin * item, end - begin, dtype, DDP_SUM, &work, result));
        works.emplace_back(work);
    }
    for (const Work& work : works) result.check(ddp_work_wait(work.get(), 0, result));
}

Row measure_size(ddp_group* group, const Options& options, std::uint64_t bytes) {
    const ddp_dtype dtype = find_dtype(options.dtype);
    const std::size_t count = std::max<std::size_t>(1, bytes / ddp_dtype_size(dtype));
    // Zeros: any other value would grow with each sum, until it overflows and may be slow to add.
    std::vector<std::max_align_t> memory(count * ddp_dtype_size(dtype) / sizeof(std::max_align_t) + 1);
    std::memset(memory.data(), 0, memory.size() * sizeof(std::max_align_t));
    const Iteration loop = [&] {
        const double start = now_ms();
        if (options.groups > 1)
            reduce_in_pieces(group, reinterpret_cast<std::byte*>(memory.data()), count, dtype, options.groups);
        else
            reduce(group, memory.data(), count, dtype);
        return now_ms() - start;
    };
    const auto series = measure(group, {options.iterations(), options.seconds}, {loop});
    Row row = make_row("allreduce", ddp_group_world_size(group), ddp_group_backend(group),
                       static_cast<std::int64_t>(count * ddp_dtype_size(dtype)), series.front());
    row["dtype"] = options.dtype;
    row["groups"] = options.groups;
    return row;
}

}  // namespace

std::vector<Row> run_allreduce(ddp_group* group, const Options& options) {
    check_sum(group);
    std::vector<Row> rows;
    for (const std::uint64_t bytes : options.bytes) rows.push_back(measure_size(group, options, bytes));
    return rows;
}

}  // namespace bench
