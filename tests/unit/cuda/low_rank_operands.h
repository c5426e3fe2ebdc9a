// Matrices for the functions of kernels/low_rank.h, in memory of any place: put(bytes) brings bytes
// there and says where.
#pragma once

#include <cmath>
#include <cstring>
#include <list>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"

namespace libddp::testing_cuda {

using Bytes = std::vector<std::byte>;

struct Shape {
    std::size_t rows, columns, rank;
};

// Shapes of one block and of several, with rows and columns left over, and some whose columns can
// be read four at a time.
inline const std::vector<Shape> kShapes{{1, 1, 1},     {7, 5, 3},     {9, 64, 1},
                                        {70, 133, 2},  {70, 132, 2},  {131, 33, 4},
                                        {20, 1100, 7}, {9000, 35, 3}, {2000, 36, 5}};
inline const std::vector<ddp_dtype> kRealTypes{DDP_F16, DDP_BF16, DDP_F32, DDP_F64};
inline constexpr ddp_low_rank_op kProducts[] = {DDP_LOW_RANK_PROJECT, DDP_LOW_RANK_PROJECT_BACK,
                                                DDP_LOW_RANK_RESTORE};
inline constexpr ddp_thin_op kThinWork[] = {DDP_THIN_DRAW, DDP_THIN_ORTHOGONALIZE, DDP_THIN_CHECK,
                                            DDP_THIN_KEEP};

// Numbers of a usual size, whatever the type.
inline Bytes waves(std::size_t count, ddp_dtype dtype, double seed) {
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = std::sin(seed * (static_cast<double>(i % 997) + 1.0));
    Bytes bytes(count * dtype_size(dtype));
    cpu::convert(bytes.data(), dtype, values.data(), DDP_F64, count);
    return bytes;
}

inline std::vector<double> numbers_of(const Bytes& bytes, ddp_dtype dtype) {
    std::vector<double> values(bytes.size() / dtype_size(dtype));
    cpu::convert(values.data(), DDP_F64, bytes.data(), dtype, values.size());
    return values;
}

// For each matrix: gradient, P, Q, own Q, room for parts, and perhaps the error.
inline constexpr std::size_t kParts = 4;
template <class Put>
std::vector<ddp_low_rank> low_rank_items(ddp_dtype dtype, const std::vector<Shape>& shapes,
                                         bool with_errors, Put put) {
    const ddp_dtype compute = compute_dtype(dtype);
    std::vector<ddp_low_rank> items;
    double seed = 0.1;
    for (const Shape& s : shapes) {
        ddp_low_rank m{};
        m.rows = s.rows;
        m.columns = s.columns;
        m.rank = s.rank;
        m.p_stride = s.rows + 3;
        m.q_stride = s.columns + (s.columns % 4 == 0 ? 4 : 1);
        m.gradient = put(waves(s.rows * s.columns, dtype, seed += 0.1));
        m.p = put(waves(m.p_stride * s.rank, compute, seed += 0.1));
        m.q = put(waves(m.q_stride * s.rank, compute, seed += 0.1));
        m.own_q = put(waves(m.q_stride * s.rank, compute, seed += 0.1));
        m.parts = put(Bytes(low_rank_parts(s.rows) * s.rank * s.columns * dtype_size(compute)));
        if (with_errors) m.error = put(waves(s.rows * s.columns, compute, seed += 0.1));
        items.push_back(m);
    }
    return items;
}

// Makes matrices of many sizes, so that sums have one piece and several rounds of them; with a
// column of zeros, and one that depends on another. For each: its elements, its error feedback, a
// flag, a workspace.
template <class Put>
std::vector<ddp_thin> thin_items(ddp_dtype dtype, bool qr, Put put) {
    std::vector<ddp_thin> items;
    for (const auto& [rows, columns] :
         {std::pair<std::size_t, std::size_t>{1, 1}, {40, 3}, {300, 2}, {9000, 5}}) {
        Bytes values = waves(rows * columns, dtype, 0.3 + static_cast<double>(rows));
        const std::size_t column = rows * dtype_size(dtype);
        if (rows == 40) std::memset(values.data(), 0, column);
        if (rows == 300) std::memcpy(values.data() + column, values.data(), column);
        ddp_thin a{};
        a.rows = rows;
        a.columns = columns;
        a.owner = static_cast<std::uint32_t>(rows);
        a.qr = qr;
        a.data = put(values);
        a.kept = put(Bytes(values.size()));
        a.bad = static_cast<std::uint32_t*>(put(Bytes(sizeof *a.bad)));
        a.workspace = static_cast<double*>(put(Bytes(2 * columns * sizeof *a.workspace)));
        items.push_back(a);
    }
    return items;
}

class HostMemory {
public:
    void* operator()(Bytes bytes) { return memory_.emplace_back(std::move(bytes)).data(); }
    const std::list<Bytes>& all() const { return memory_; }

private:
    std::list<Bytes> memory_;
};

}  // namespace libddp::testing_cuda
