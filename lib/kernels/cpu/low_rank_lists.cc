#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "kernels/thin_matrix.h"

namespace libddp {
namespace thin {
namespace {

// Threads that are only one.
struct Alone {
    static constexpr std::uint32_t index() { return 0; }
    static constexpr std::uint32_t size() { return 1; }
    static void sync() {}
    static std::uint32_t add(std::uint32_t* to, std::uint32_t n) {
        *to += n;
        return *to - n;
    }
};

// All lanes of a piece, eight at a time: what vectors the baseline has add them.
template <class T>
double sum_of_piece(const T* a, const T* b, std::size_t count) {
    constexpr std::size_t kTogether = 8;
    double lanes[kLanes];
    if (count == kPiece) {
        for (std::size_t first = 0; first < kLanes; first += kTogether) {
            double sums[kTogether] = {};
            for (std::size_t i = first; i < kPiece; i += kLanes)
                for (std::size_t lane = 0; lane < kTogether; ++lane)
                    sums[lane] +=
                        static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
            std::copy_n(sums, kTogether, lanes + first);
        }
    } else {
        for (std::uint32_t lane = 0; lane < kLanes; ++lane)
            lanes[lane] = sum_of_lane(a, b, count, lane);
    }
    return sum_of_lanes(lanes);
}

// The tasks that threads do together, one after another.
template <class T>
void dots(const Alone&, Shared&, const T* a, const T* b, std::size_t stride, std::size_t columns,
          std::size_t count, double* out) {
    for (std::size_t c = 0; c < columns; ++c) {
        out[c] = 0;
        for (std::size_t i = 0; i < count; i += kPiece)
            out[c] +=
                sum_of_piece(a + i, b + c * stride + i, std::min<std::size_t>(kPiece, count - i));
    }
}

}  // namespace
}  // namespace thin

namespace cpu {
namespace {

bool all_finite(const void* data, ddp_dtype dtype, std::size_t count) {
    return first_nonfinite(data, count, dtype) == count;
}

void fill_nan(void* data, ddp_dtype dtype, std::size_t count) {
    constexpr std::uint16_t kHalfNan = 0x7e00, kBrainNan = 0x7fc0;
    if (dtype == DDP_F64)
        std::fill_n(static_cast<double*>(data), count, std::numeric_limits<double>::quiet_NaN());
    else if (dtype == DDP_F32)
        std::fill_n(static_cast<float*>(data), count, std::numeric_limits<float>::quiet_NaN());
    else
        std::fill_n(static_cast<std::uint16_t*>(data), count,
                    dtype == DDP_F16 ? kHalfNan : kBrainNan);
}

bool is_left_out(const ddp_low_rank& item) {
    return std::any_of(item.left_out, item.left_out + 2,
                       [](const std::uint32_t* flag) { return flag && *flag; });
}

template <class T>
void thin_one(ddp_thin_op op, const ddp_thin& a, const ddp_thin_rules& rules) {
    const thin::Alone threads;
    thin::Shared shared;
    T* data = static_cast<T*>(a.data);
    switch (op) {
        case DDP_THIN_DRAW:
            return thin::draw(threads, shared, data, a.rows, a.columns, rules.seed, a.owner,
                              rules.step);
        case DDP_THIN_ORTHOGONALIZE:
            if (a.bad && *a.bad) return;
            return a.qr ? thin::householder(threads, shared, data, a.rows, a.columns, a.workspace)
                        : thin::gram_schmidt(threads, shared, data, a.rows, a.columns,
                                             rules.epsilon, a.workspace);
        case DDP_THIN_CHECK:
            if (!all_finite(data, sizeof(T) == 8 ? DDP_F64 : DDP_F32, a.rows * a.columns))
                *a.bad = 1;
            return;
        default:
            if ((a.bad && *a.bad) || thin::all_zero(threads, shared, data, a.rows * a.columns))
                return;
            std::copy_n(data, a.rows * a.columns, static_cast<T*>(a.kept));
    }
}

}  // namespace

void low_rank(ddp_low_rank_op op, const std::vector<ddp_low_rank>& items, ddp_dtype dtype) {
    for (const ddp_low_rank& item : items) {
        if (item.only_if && !*item.only_if) continue;
        const LowRankMatrix m{item.gradient, dtype, item.error, item.rows, item.columns};
        const ThinMatrix p{item.p, item.p_stride}, q{item.q, item.q_stride},
            own_q{item.own_q, item.q_stride};
        if (op == DDP_LOW_RANK_PROJECT)
            low_rank_project(m, q, p, item.rank);
        else if (op == DDP_LOW_RANK_PROJECT_BACK)
            low_rank_project_back(m, p, own_q, item.rank);
        else if (is_left_out(item))
            fill_nan(item.gradient, dtype, item.rows * item.columns);
        else
            low_rank_restore(m, p, q, own_q, item.rank);
    }
}

void thin(ddp_thin_op op, const std::vector<ddp_thin>& items, ddp_dtype dtype,
          const ddp_thin_rules& rules) {
    for (const ddp_thin& item : items)
        dtype == DDP_F64 ? thin_one<double>(op, item, rules) : thin_one<float>(op, item, rules);
}

void leave_out(const std::vector<ddp_doubt>& items, ddp_dtype dtype, const std::uint32_t* only_if) {
    if (only_if && !*only_if) return;
    for (const ddp_doubt& item : items) {
        if (all_finite(item.gradient, dtype, item.count)) continue;
        std::memset(item.gradient, 0, item.count * dtype_size(dtype));
        fill_nan(item.mark, compute_dtype(dtype), 1);
    }
}

}  // namespace cpu
}  // namespace libddp
