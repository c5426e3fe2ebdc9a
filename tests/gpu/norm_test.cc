// The kernels of norms on a GPU, against the CPU's own sums. Their threads one by one:
// tests/unit/cuda.
#include <cmath>

#include "gpu/gpu.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/norm_order.h"
#include "kernels/on_device.h"
#include "unit/cuda/values.h"

namespace libddp {
namespace {

using namespace testing_gpu;

constexpr ddp_dtype kNormTypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128};

// More lists than one launch takes, one of more parts than totals, and none of them aligned to more
// than an element. NaNs: whether some of the numbers are.
void expect_the_bits_of_the_cpu(Gpu& gpu, ddp_dtype dtype, bool nans) {
    std::mt19937 random(29);
    std::vector<std::size_t> counts = {0, 1, 1023, 1025, 20'003, nans ? 1000u : 400'017u};
    for (std::size_t i = 0; i < 150; ++i) counts.push_back(i * 31 % 2100);
    std::vector<std::vector<std::byte>> lists;
    std::vector<std::shared_ptr<std::byte>> there;
    const std::size_t size = dtype_size(dtype);
    for (const std::size_t count : counts) {
        lists.push_back(testing_cuda::random_values(dtype, count + 1, random));
        if (!nans)
            for (std::size_t i = 0; i < lists.back().size(); ++i) {
                // the exponents of usual numbers
                const auto part = dtype_size(cuda::part_of(dtype));
                if (i % part == part - 1) lists.back()[i] &= std::byte{0x3f};
            }
        there.push_back(gpu.upload(lists.back()));
    }
    const auto terms = gpu.allocate(counts.size() * sizeof(double));
    std::vector<ddp_norm_item> items;
    for (std::size_t i = 0; i < counts.size(); ++i)
        items.push_back(
            {there[i].get() + size, counts[i], reinterpret_cast<double*>(terms.get()) + i});
    for (const ddp_norm_kind kind : {DDP_NORM_MAGNITUDES, DDP_NORM_SQUARES, DDP_NORM_LARGEST}) {
        const auto scratch = gpu.allocate(on_device::norm_scratch(items, dtype, kind));
        on_device::norm_terms(gpu.stream(), items, dtype, kind, scratch.get());
        const auto got = values_of<double>(gpu.read(terms.get(), counts.size() * sizeof(double)));
        for (std::size_t i = 0; i < counts.size(); ++i) {
            const double want = cpu::norm_terms(lists[i].data() + size, counts[i], dtype,
                                                static_cast<cpu::NormKind>(kind));
            if (std::isnan(want))
                ASSERT_TRUE(std::isnan(got[i])) << dtype_name(dtype) << " " << kind << " " << i;
            else
                ASSERT_EQ(got[i], want) << dtype_name(dtype) << " " << kind << " " << i;
        }
    }
}

TEST(GpuNorm, HasTheBitsOfTheCpu) {
    Gpu gpu;
    for (const ddp_dtype dtype : kNormTypes) expect_the_bits_of_the_cpu(gpu, dtype, false);
}

TEST(GpuNorm, NanAndInfinity) {
    Gpu gpu;
    for (const ddp_dtype dtype : kNormTypes) expect_the_bits_of_the_cpu(gpu, dtype, true);
}

}  // namespace
}  // namespace libddp
