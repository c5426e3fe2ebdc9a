// The codecs on a GPU, against those of the CPU: the same bytes, the same numbers, the same
// residuals.
#include "gpu/gpu.h"
#include "kernels/on_device.h"
#include "unit/cuda/codec_world.h"
#include "unit/cuda/shares_world.h"

namespace libddp {
namespace {

using namespace testing_gpu;
using namespace testing_cuda;

// One rank's side of a batch on the GPU.
struct Uploaded {
    Uploaded(Gpu& gpu, const Side& side, std::byte* gathered)
        : gradients(gpu.upload(side.gradients)),
          residuals(gpu.upload(side.residuals)),
          parts(side.parts) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            parts[i].gradient = gradients.get() + side.offsets[i];
            if (!parts[i].residual) continue;
            const auto* residual = static_cast<const std::byte*>(parts[i].residual);
            parts[i].residual = residuals.get() + (residual - side.residuals.data());
        }
        batch = side.batch;
        batch.parts = parts.data();
        batch.gathered = gathered;
        scratch = gpu.allocate(on_device::encode_scratch(gpu.stream(), batch));
        batch.scratch = scratch.get();
    }

    std::shared_ptr<std::byte> gradients, residuals, scratch;
    std::vector<ddp_codec_part> parts;
    ddp_codec_batch batch;
};

void run_gpu(Gpu& gpu, const Setting& s, World& world) {
    const auto gathered = gpu.upload(world.gathered);
    std::vector<Uploaded> sides;
    for (const Side& side : world.sides) sides.emplace_back(gpu, side, gathered.get());
    for (Uploaded& side : sides) on_device::encode(gpu.stream(), side.batch);
    for (Uploaded& side : sides) {
        on_device::decode(gpu.stream(), side.batch, s.scale);
        side.parts.clear();  // nothing has to be kept
    }
    world.gathered = gpu.read(gathered.get(), world.gathered.size());
    for (std::size_t i = 0; i < sides.size(); ++i) {
        Side& side = world.sides[i];
        side.gradients = gpu.read(sides[i].gradients.get(), side.gradients.size());
        side.residuals = gpu.read(sides[i].residuals.get(), side.residuals.size());
    }
}

class GpuCodec : public ::testing::TestWithParam<Named> {};

INSTANTIATE_TEST_SUITE_P(All, GpuCodec, ::testing::ValuesIn(kCodecs),
                         [](const auto& test) { return test.param.name; });

TEST_P(GpuCodec, SameBytesAndNumbersAsOnTheCpu) {
    Gpu gpu;
    std::uint32_t seed = 100;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const std::size_t shift : {0u, 1u}) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", shift " << shift);
            Setting s{GetParam().codec, dtype, {1, 7, 8, 1023, 1024, 1025, 5000, 20011, 300}};
            for (int i = 0; i < 70; ++i) s.counts.push_back(static_cast<std::size_t>(1 + i * 5));
            s.shift = shift;
            s.spoilt = shift == 1;
            s.scale = shift == 1 ? 1.0 / 3 : 1;
            World expected(s, ++seed), actual(s, seed);
            run_cpu(s, expected);
            run_gpu(gpu, s, actual);
            compare(s, expected, actual);
            if (HasFatalFailure()) return;
        }
}

TEST_P(GpuCodec, ALongPart) {
    Gpu gpu;
    Setting s{GetParam().codec, DDP_F32, {3'000'001, 17}};
    World expected(s, 12), actual(s, 12);
    run_cpu(s, expected);
    run_gpu(gpu, s, actual);
    compare(s, expected, actual);
}

// Numbers of 8 bits.
struct GpuSite {
    std::shared_ptr<std::byte> upload(const Bytes& bytes) { return gpu.upload(bytes); }
    Bytes read(const std::byte* from, std::size_t bytes) { return gpu.read(from, bytes); }
    std::size_t encode_scratch(const ddp_codec_batch& batch) {
        return on_device::encode_scratch(gpu.stream(), batch);
    }
    void encode(const ddp_codec_batch& batch) { on_device::encode(gpu.stream(), batch); }
    void recode(const ddp_codec_batch& batch, double scale) {
        on_device::recode(gpu.stream(), batch, scale);
    }
    void decode(const ddp_codec_batch& batch, double scale) {
        on_device::decode(gpu.stream(), batch, scale);
    }

    Gpu gpu;
};

class GpuShares : public ::testing::TestWithParam<Named> {};

INSTANTIATE_TEST_SUITE_P(All, GpuShares, ::testing::ValuesIn(kShareCodecs),
                         [](const auto& test) { return test.param.name; });

TEST_P(GpuShares, SameBytesAndNumbersAsOnTheCpu) {
    GpuSite site;
    std::uint32_t seed = 100;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool keeps : {false, true}) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", keeps " << keeps);
            SharesSetting s{GetParam().codec, dtype, {1, 31, 256, 257, 2048, 2049, 100'000}, 3};
            for (std::size_t i = 0; i < 70; ++i) s.counts.push_back(1 + i * 5);
            s.shift = 1;
            s.spoilt = true;
            s.keeps = keeps;
            s.scale = 1.0 / 3;
            compare_shares(s, ++seed, site);
            if (HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace libddp
