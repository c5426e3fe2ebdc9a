// Newton-Schulz iterations, with the products of outer_simd.cc: their bits are the same on every
// machine.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/exact_sum.h"
#include "kernels/updates.h"

namespace libddp::cpu {
namespace {

// The coefficients of Jordan et al. 2024: singular values come to 0.7 ... 1.2 in five steps.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr std::size_t kTile = 16;

template <class T>
void transpose(T* to, const T* from, std::size_t rows, std::size_t columns) {
    for (std::size_t i0 = 0; i0 < rows; i0 += kTile)
        for (std::size_t j0 = 0; j0 < columns; j0 += kTile)
            for (std::size_t i = i0; i < std::min(rows, i0 + kTile); ++i)
                for (std::size_t j = j0; j < std::min(columns, j0 + kTile); ++j)
                    to[j * rows + i] = from[i * columns + j];
}

// x: n rows, not more than its m columns. X becomes a X + (b A + c A^2) X, where A = X X^T.
template <class T>
void iterate(std::vector<T>& x, std::size_t n, std::size_t m, ddp_dtype dtype, int steps) {
    std::vector<T> transposed(x.size()), next(x.size()), gram(n * n), square(n * n);
    for (int step = 0; step < steps; ++step) {
        transpose(transposed.data(), x.data(), n, m);
        outer_products(gram.data(), transposed.data(), transposed.data(), m, n, n, dtype, false, 1);
        outer_products(square.data(), gram.data(), gram.data(), n, n, n, dtype, false, 1);
        for (std::size_t i = 0; i < gram.size(); ++i)
            gram[i] = static_cast<T>(kB) * gram[i] + static_cast<T>(kC) * square[i];
        for (std::size_t i = 0; i < x.size(); ++i) next[i] = static_cast<T>(kA) * x[i];
        outer_products(next.data(), gram.data(), x.data(), n, n, m, dtype, true, 1);
        x.swap(next);
    }
}

template <class T>
void orthogonalize_as(T* matrix, std::size_t rows, std::size_t columns, ddp_dtype dtype, int steps,
                      double eps) {
    ExactSum squares;
    squares.add_squares(matrix, rows * columns, dtype);
    const auto norm = static_cast<T>(std::max(std::sqrt(squares.value()), eps));
    std::vector<T> x(matrix, matrix + rows * columns);
    const bool tall = rows > columns;
    if (tall) transpose(x.data(), matrix, rows, columns);
    for (T& number : x) number /= norm;
    iterate(x, std::min(rows, columns), std::max(rows, columns), dtype, steps);
    tall ? transpose(matrix, x.data(), columns, rows)
         : static_cast<void>(std::copy(x.begin(), x.end(), matrix));
}

}  // namespace

void orthogonalize(void* matrix, std::size_t rows, std::size_t columns, ddp_dtype dtype, int steps,
                   double eps) {
    if (dtype == DDP_F64)
        orthogonalize_as(static_cast<double*>(matrix), rows, columns, dtype, steps, eps);
    else
        orthogonalize_as(static_cast<float*>(matrix), rows, columns, dtype, steps, eps);
}

}  // namespace libddp::cpu
