// The kernels of optimizers on a GPU, against the CPU's own steps. Their threads one by one:
// tests/unit/cuda.
#include <functional>
#include <list>
#include <utility>

#include "gpu/gpu.h"
#include "kernels/on_device.h"
#include "unit/cuda/update_items.h"

namespace libddp {
namespace {

using namespace testing_gpu;
using namespace testing_cuda;

// Sums of squares are added by many threads at once, in whichever order.
TEST(GpuUpdates, HaveTheBitsOfTheCpu) {
    Gpu gpu;
    std::vector<std::size_t> counts = update_counts();
    counts.push_back(50'007);
    for (const ddp_dtype values : kRealTypes)
        for (const ddp_dtype gradients :
             {values, static_cast<ddp_dtype>(values == DDP_F32 ? DDP_F64 : DDP_F32)})
            for (const UpdateCase& test : kUpdates) {
                HostMemory expected;
                std::list<std::pair<std::shared_ptr<std::byte>, std::size_t>> there;
                const auto put = [&](const Bytes& bytes) -> void* {
                    there.emplace_back(gpu.upload(bytes), bytes.size());
                    return there.back().first.get();
                };
                const auto wanted =
                    update_items(test, counts, values, gradients, std::ref(expected));
                const auto items = update_items(test, counts, values, gradients, put);
                for (int step = 0; step < 2; ++step) {
                    for (const ddp_update& item : wanted)
                        update_on_cpu(test.op, item, values, gradients);
                    on_device::update(gpu.stream(), test.op, items, values, gradients);
                }
                std::list<Bytes> actual;
                for (const auto& [memory, bytes] : there)
                    actual.push_back(gpu.read(memory.get(), bytes));
                ASSERT_TRUE(with_carried_digits(actual, values) ==
                            with_carried_digits(expected.all(), values))
                    << test.name << ", values " << dtype_name(values) << ", gradients "
                    << dtype_name(gradients);
            }
}

}  // namespace
}  // namespace libddp
