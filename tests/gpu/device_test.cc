// The functions of device_kernels.h on a GPU, against the same on the CPU.
#include <cuda.h>

#include <algorithm>
#include <future>

#include "gpu/gpu.h"
#include "kernels/on_device.h"
#include "unit/cuda/values.h"

namespace libddp {

std::string testing_gpu::why_skip() {
    return no_gpu();
}

namespace {

using namespace testing_gpu;
using testing_cuda::random_values;
using testing_cuda::same;

// As tests/unit/cuda says of the kernel: widened, scaled, rounded once.
std::vector<std::byte> expected_of(const std::byte* source, std::size_t count, ddp_dtype from,
                                   ddp_dtype to, double scale) {
    std::vector<std::byte> result(count * dtype_size(to));
    if (from == to) {
        cpu::scale_copy(result.data(), source, count, from, scale);
        return result;
    }
    const ddp_dtype wide = from == DDP_F16 || from == DDP_BF16 ? DDP_F32 : from;
    std::vector<std::byte> widened(count * dtype_size(wide));
    cpu::convert(widened.data(), wide, source, from, count);
    cpu::scale_copy(widened.data(), widened.data(), count, wide, scale);
    cpu::convert(result.data(), to, widened.data(), wide, count);
    return result;
}

bool can_convert(ddp_dtype from, ddp_dtype to) {
    return from == to ||
           (is_floating(from) && is_floating(to) && is_complex(from) == is_complex(to));
}

TEST(Gpu, MemoryIsZeroedAndFoundAgain) {
    Gpu gpu;
    for (int round = 0; round < 3; ++round) {
        auto memory = gpu.allocate(100003);
        const auto bytes = gpu.read(memory.get(), 100003);
        EXPECT_TRUE(
            std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 256, 0u);
        EXPECT_TRUE(same_device(device_of(memory.get()), kFirst));
        // for the next round
        gpu.write(memory.get(), std::vector<std::byte>(100003, std::byte{0x5a}));
    }
    int on_host = 0;
    EXPECT_TRUE(is_cpu(device_of(&on_host)));
    EXPECT_TRUE(is_cpu(device_of(allocate_pinned(DDP_DEVICE_CUDA, 64).get())));
}

TEST(Gpu, TransfersEveryPairOfTypesAndAlignments) {
    Gpu gpu;
    std::mt19937 random(23);
    for (const ddp_dtype from : testing_cuda::kAllTypes)
        for (const ddp_dtype to : testing_cuda::kAllTypes) {
            if (!can_convert(from, to)) continue;
            for (const double scale : {1.0, 1.0 / 3})
                for (const std::size_t count : {1u, 33u, 100001u})
                    for (const std::size_t shift : {0u, 1u}) {
                        const auto values = random_values(from, count + shift, random);
                        const std::vector<std::byte> guarded((count + 2 + shift) * dtype_size(to),
                                                             std::byte{0xa5});
                        const auto source = gpu.upload(values), target = gpu.upload(guarded);
                        auto* first = target.get() + (1 + shift) * dtype_size(to);
                        const auto* begin = source.get() + shift * dtype_size(from);
                        on_device::transfer(gpu.stream(), {{first, begin, count}}, from, to, scale);
                        const auto result = gpu.read(target.get(), guarded.size());
                        const auto expected = expected_of(values.data() + shift * dtype_size(from),
                                                          count, from, to, scale);
                        const std::size_t offset = (1 + shift) * dtype_size(to);
                        ASSERT_TRUE(same(result.data() + offset, expected.data(), count, to))
                            << dtype_name(from) << " to " << dtype_name(to) << ", count " << count
                            << ", scale " << scale << ", shift " << shift;
                        ASSERT_TRUE(std::equal(result.begin(),
                                               result.begin() + static_cast<std::ptrdiff_t>(offset),
                                               guarded.begin()));
                        ASSERT_EQ(result.back(), std::byte{0xa5});
                    }
        }
}

// Rounding by the GPU's own instructions: all f16 and bf16, and all f32 whose lower halves matter.
TEST(Gpu, RoundsAsTheCpuDoes) {
    Gpu gpu;
    std::vector<std::uint32_t> bits;
    for (std::uint32_t upper = 0; upper < 65536; ++upper)
        for (std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu,
                                    0x8000u, 0x8001u, 0xf000u, 0xffffu})
            bits.push_back(upper << 16 | lower);
    const auto source = bytes_of(bits);
    const auto on_gpu = gpu.upload(source);
    for (const ddp_dtype half : {DDP_F16, DDP_BF16}) {
        auto rounded = gpu.allocate(bits.size() * 2), back = gpu.allocate(bits.size() * 4);
        on_device::transfer(gpu.stream(), {{rounded.get(), on_gpu.get(), bits.size()}}, DDP_F32,
                            half, 1);
        on_device::transfer(gpu.stream(), {{back.get(), rounded.get(), bits.size()}}, half, DDP_F32,
                            1);
        std::vector<std::byte> expected(bits.size() * 2), expected_back(bits.size() * 4);
        cpu::convert(expected.data(), half, source.data(), DDP_F32, bits.size());
        cpu::convert(expected_back.data(), DDP_F32, expected.data(), half, bits.size());
        EXPECT_TRUE(same(gpu.read(rounded.get(), expected.size()).data(), expected.data(),
                         bits.size(), half));
        EXPECT_TRUE(same(gpu.read(back.get(), expected_back.size()).data(), expected_back.data(),
                         bits.size(), DDP_F32));
    }
}

TEST(Gpu, PacksManySegmentsAtOnce) {
    Gpu gpu;
    std::mt19937 random(29);
    constexpr std::size_t kSegments = 1000;
    std::vector<std::shared_ptr<std::byte>> sources;
    std::vector<std::vector<std::byte>> values;
    std::vector<std::size_t> offsets;
    std::size_t total = 0;
    for (std::size_t i = 0; i < kSegments; ++i) {
        const std::size_t count = i % 100 == 99 ? 300001 : random() % 500;
        values.push_back(random_values(DDP_F32, count, random));
        sources.push_back(gpu.upload(values.back()));
        offsets.push_back(total);
        total += (count + 31) / 32 * 32;
    }
    auto bucket = gpu.allocate(total * 2);
    std::vector<ddp_segment> segments;
    for (std::size_t i = 0; i < kSegments; ++i)
        segments.push_back({bucket.get() + offsets[i] * 2, sources[i].get(), values[i].size() / 4});
    on_device::transfer(gpu.stream(), segments, DDP_F32, DDP_F16, 0.25);
    const auto packed = gpu.read(bucket.get(), total * 2);
    for (std::size_t i = 0; i < kSegments; ++i) {
        const std::size_t count = values[i].size() / 4;
        const auto expected = expected_of(values[i].data(), count, DDP_F32, DDP_F16, 0.25);
        ASSERT_TRUE(same(packed.data() + offsets[i] * 2, expected.data(), count, DDP_F16))
            << "segment " << i;
    }
}

TEST(Gpu, ReducesInRankOrder) {
    Gpu gpu;
    std::mt19937 random(31);
    for (const ddp_dtype dtype : testing_cuda::kAllTypes)
        for (const ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX}) {
            if (!cpu::can_reduce(dtype, op)) continue;
            for (const std::size_t ranks : {1u, 2u, 7u})
                for (const std::size_t count : {1u, 1001u, 70000u}) {
                    std::vector<std::vector<std::byte>> values;
                    std::vector<std::shared_ptr<std::byte>> memory;
                    std::vector<const void*> on_host, on_gpu;
                    for (std::size_t rank = 0; rank < ranks; ++rank)
                        values.push_back(random_values(dtype, count, random));
                    for (const auto& input : values) {
                        memory.push_back(gpu.upload(input));
                        on_host.push_back(input.data());
                        on_gpu.push_back(memory.back().get());
                    }
                    std::vector<std::byte> expected(count * dtype_size(dtype));
                    cpu::reduce(expected.data(), on_host.data(), ranks, count, dtype, op, 1.0 / 3);
                    on_device::reduce(gpu.stream(), memory[0].get(), on_gpu.data(), ranks, count,
                                      dtype, op, 1.0 / 3);
                    const auto result = gpu.read(memory[0].get(), expected.size());
                    ASSERT_TRUE(same(result.data(), expected.data(), count, dtype))
                        << dtype_name(dtype) << ", op " << op << ", " << ranks << " ranks, count "
                        << count;
                }
        }
}

TEST(Gpu, EventsOrderStreamsAndWaitsAreBounded) {
    Gpu first, second;
    auto memory = first.allocate(4);
    const auto value = first.upload(bytes_of(std::vector<float>{7}));
    const auto twice = [&] {
        on_device::transfer(first.stream(), {{memory.get(), value.get(), 1}}, DDP_F32, DDP_F32, 2);
    };
    twice();
    first.write(memory.get(), bytes_of(std::vector<float>{0}));
    Blocked blocked(first.handle());
    twice();
    const EventPtr there = first.stream().record();
    const auto before = std::chrono::steady_clock::now();
    EXPECT_FALSE(there->done());
    EXPECT_FALSE(there->wait(std::chrono::milliseconds(50)));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(90));
    second.stream().wait(*there);
    const EventPtr after = second.stream().record();
    EXPECT_FALSE(after->wait(std::chrono::milliseconds(20)));
    blocked.go();
    EXPECT_EQ(values_of<float>(second.read(memory.get(), 4)), std::vector<float>{14});
    EXPECT_TRUE(there->done() && after->done());
}

// Else each thread of libddp would begin to use GPU 0, whichever its own is.
TEST(Gpu, AThreadThatHadNoDeviceHasNoneAfterwards) {
    Gpu gpu;
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 4000,
                                               cudaEnableDefault, &found),
              cudaSuccess);
#else
    ASSERT_EQ(cudaGetDriverEntryPoint("cuCtxGetCurrent", &function, cudaEnableDefault, &found),
              cudaSuccess);
#endif
    const auto current = [get = reinterpret_cast<CUresult (*)(CUcontext*)>(function)] {
        CUcontext context = nullptr;
        EXPECT_EQ(get(&context), CUDA_SUCCESS);
        return context;
    };
    std::thread([&] {
        EXPECT_EQ(current(), nullptr);
        auto memory = gpu.allocate(100);
        auto pinned = allocate_pinned(DDP_DEVICE_CUDA, 100);
        gpu.wait();
        EXPECT_EQ(current(), nullptr);
    }).join();
}

// Freeing it would wait for whatever runs on the device.
TEST(Gpu, PinnedMemoryIsUsedAgain) {
    constexpr std::size_t kBytes = 1 << 20;
    auto first = allocate_pinned(DDP_DEVICE_CUDA, kBytes);
    auto second = allocate_pinned(DDP_DEVICE_CUDA, kBytes);
    EXPECT_NE(first, second);
    const auto* where = first.get();
    first.reset();
    EXPECT_EQ(allocate_pinned(DDP_DEVICE_CUDA, kBytes - 100).get(), where);
    const auto small = allocate_pinned(DDP_DEVICE_CUDA, kBytes / 4);
    EXPECT_NE(small.get(), where) << "most of it would lie idle";
}

TEST(Gpu, ACapturedStreamIsKnownAndOthersGoOn) {
    Gpu gpu;
    cudaStream_t captured = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(gpu.stream().capture(captured), 0u);
    ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_NE(gpu.stream().capture(captured), 0u);
    EXPECT_THROW(gpu.stream().refuse_capture(captured), Error);
    // Calls of another thread of libddp meanwhile must not break the capture.
    std::async(std::launch::async, [&] {
        auto memory = gpu.allocate(1000);
        EXPECT_EQ(gpu.read(memory.get(), 1000).size(), 1000u);
    }).get();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(captured);
}

}  // namespace
}  // namespace libddp
