// PowerSGD's kernels on a GPU, against the same on the CPU. Their threads one by one:
// tests/unit/cuda.
#include <list>

#include "gpu/gpu.h"
#include "kernels/on_device.h"
#include "unit/cuda/low_rank_operands.h"

namespace libddp {
namespace {

using namespace testing_gpu;
using namespace testing_cuda;

class GpuMemory {
public:
    explicit GpuMemory(Gpu& gpu) : gpu_(gpu) {}
    void* operator()(const Bytes& bytes) {
        memory_.emplace_back(gpu_.upload(bytes), bytes.size());
        return memory_.back().first.get();
    }
    std::list<Bytes> all() const {
        std::list<Bytes> result;
        for (const auto& [memory, bytes] : memory_)
            result.push_back(gpu_.read(memory.get(), bytes));
        return result;
    }

private:
    Gpu& gpu_;
    std::list<std::pair<std::shared_ptr<std::byte>, std::size_t>> memory_;
};

// Some that need many blocks, too, and more matrices than one launch takes.
std::vector<Shape> shapes() {
    std::vector<Shape> all = kShapes;
    all.push_back({500, 377, 4});
    all.push_back({64, 3000, 9});
    for (int i = 0; i < 70; ++i) all.push_back({33, 65, 2});
    return all;
}

TEST(GpuLowRank, ProductsAreThoseOfTheCpu) {
    Gpu gpu;
    for (const ddp_low_rank_op op : kProducts)
        for (const ddp_dtype dtype : kRealTypes)
            for (const bool with_errors : {false, true}) {
                HostMemory on_host;
                GpuMemory on_gpu(gpu), again(gpu);
                cpu::low_rank(op, low_rank_items(dtype, shapes(), with_errors, std::ref(on_host)),
                              dtype);
                on_device::low_rank(gpu.stream(), op,
                                    low_rank_items(dtype, shapes(), with_errors, std::ref(on_gpu)),
                                    dtype);
                on_device::low_rank(gpu.stream(), op,
                                    low_rank_items(dtype, shapes(), with_errors, std::ref(again)),
                                    dtype);
                const auto got = on_gpu.all();
                ASSERT_EQ(got, again.all()) << "one order of sums";
                if (op == DDP_LOW_RANK_RESTORE) {
                    ASSERT_EQ(got, on_host.all()) << dtype_name(dtype);
                    continue;
                }
                std::size_t i = 0;
                for (auto wanted = on_host.all().begin(); const Bytes& bytes : got) {
                    const std::size_t operand = i++ % (with_errors ? 6 : 5);
                    const ddp_dtype type = operand == 0 ? dtype : compute_dtype(dtype);
                    const auto a = numbers_of(bytes, type), b = numbers_of(*wanted++, type);
                    if (operand == kParts) continue;
                    const double tolerance = (dtype == DDP_F64 ? 1e-14 : 1e-6) * 2000;
                    for (std::size_t k = 0; k < a.size(); ++k)
                        ASSERT_NEAR(a[k], b[k], tolerance)
                            << dtype_name(dtype) << " " << i << ", " << k;
                }
            }
}

TEST(GpuLowRank, ThinMatricesHaveTheBitsOfTheCpu) {
    Gpu gpu;
    const ddp_thin_rules rules{77, 0.01, 5};
    for (const ddp_dtype dtype : {DDP_F32, DDP_F64})
        for (const bool qr : {false, true}) {
            HostMemory on_host;
            GpuMemory on_gpu(gpu);
            const auto expected = thin_items(dtype, qr, std::ref(on_host));
            const auto actual = thin_items(dtype, qr, std::ref(on_gpu));
            for (const ddp_thin_op op : kThinWork) {
                cpu::thin(op, expected, dtype, rules);
                on_device::thin(gpu.stream(), op, actual, dtype, rules);
                EXPECT_EQ(on_gpu.all(), on_host.all()) << op;
            }
        }
}

TEST(GpuLowRank, PartsThatAreNotFiniteAreLeftOut) {
    Gpu gpu;
    for (const ddp_dtype dtype : kRealTypes) {
        Bytes good = waves(100'000, dtype, 0.3), bad = good;
        const double nan = NAN;
        cpu::convert(bad.data() + 70'000 * dtype_size(dtype), dtype, &nan, DDP_F64, 1);
        const auto good_there = gpu.upload(good), bad_there = gpu.upload(bad),
                   marks = gpu.allocate(16),
                   flag = gpu.upload(bytes_of(std::vector<std::uint32_t>{1}));
        on_device::leave_out(
            gpu.stream(),
            {{good_there.get(), 100'000, marks.get()}, {bad_there.get(), 100'000, marks.get() + 8}},
            dtype, reinterpret_cast<const std::uint32_t*>(flag.get()));
        EXPECT_EQ(gpu.read(good_there.get(), good.size()), good);
        EXPECT_EQ(gpu.read(bad_there.get(), bad.size()), Bytes(bad.size()));
        const Bytes mark = gpu.read(marks.get() + 8, dtype_size(compute_dtype(dtype)));
        EXPECT_TRUE(std::isnan(numbers_of(mark, compute_dtype(dtype))[0]));
        EXPECT_EQ(gpu.read(marks.get(), 8), Bytes(8));
    }
}

}  // namespace
}  // namespace libddp
