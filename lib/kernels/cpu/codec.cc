#include "kernels/cpu/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/arithmetic.h"
#include "kernels/codec.h"
#include "kernels/codec_arithmetic.h"
#include "kernels/cpu/eight_bits.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

std::size_t packed_blocks(std::size_t count, std::size_t block, std::size_t real) {
    return codec::divide_up(count, codec::block_size(block, count)) * 2 * real;
}

std::size_t packed_eight_bits(std::size_t count, std::size_t block, std::size_t real) {
    const auto bytes = [real](std::size_t n) { return real + (n + real - 1) / real * real; };
    return count / block * bytes(block) + (count % block > 0 ? bytes(count % block) : 0);
}

std::size_t packed_topk(const ddp_codec& codec, std::size_t count, std::size_t real) {
    if (count - 1 > std::numeric_limits<std::uint32_t>::max())
        fail(DDP_ERROR_UNSUPPORTED, "topk: a parameter has ", count,
             " elements; places are written in 32 bits, which is enough for 4,294,967,296");
    return topk_count(codec, count) * (real + sizeof(std::uint32_t));
}

}  // namespace

std::size_t packed_size(const ddp_codec& codec, ddp_dtype gradient, std::size_t count) {
    const std::size_t real = dtype_size(compute_dtype(gradient));
    switch (codec.kind) {
        case DDP_CODEC_QUANTIZE:
            return packed_blocks(count, codec.block, real) + count;
        case DDP_CODEC_ONEBIT:
            return packed_blocks(count, codec.block, real) + (count + 7) / 8;
        case DDP_CODEC_TOPK:
            return packed_topk(codec, count, real);
        default:
            return packed_eight_bits(count, codec.block, real);
    }
}

bool has_shares(const ddp_codec& codec) {
    return codec.kind == DDP_CODEC_INT8 || codec.kind == DDP_CODEC_E4M3 ||
           codec.kind == DDP_CODEC_E5M2;
}

std::size_t topk_count(const ddp_codec& codec, std::size_t count) {
    const double share = codec.ratio * static_cast<double>(count), whole = std::round(share);
    const double k = std::fabs(share - whole) <= 1e-9 * share ? whole : std::ceil(share);
    return std::clamp(static_cast<std::size_t>(k), std::size_t{1}, count);
}

}  // namespace libddp

namespace libddp::cpu {
namespace {

// Elements that are added up at a time: few enough to stay in the L1 cache while every rank's share
// is added.
constexpr std::size_t kChunk = 2048;

template <class Real>
constexpr ddp_dtype kDtype = std::is_same_v<Real, double> ? DDP_F64 : DDP_F32;

template <class Real>
std::unique_ptr<const Codec<Real>> codec_of(const ddp_codec& codec) {
    switch (codec.kind) {
        case DDP_CODEC_QUANTIZE:
            return quantize_codec<Real>(codec);
        case DDP_CODEC_ONEBIT:
            return onebit_codec<Real>(codec);
        default:
            return topk_codec<Real>(codec);
    }
}

template <class Real>
class Coder {
public:
    explicit Coder(const ddp_codec_batch& batch)
        : batch_(batch), codec_(codec_of<Real>(batch.codec)) {}

    void encode() const {
        const auto rank = static_cast<std::size_t>(batch_.rank);
        for (std::size_t i = 0; i < batch_.part_count; ++i) {
            const ddp_codec_part& part = batch_.parts[i];
            auto* x = static_cast<Real*>(needs_copy(part) ? batch_.scratch : part.gradient);
            if (needs_copy(part)) input(part, 0, part.count, x);
            const bool finite = first_nonfinite(x, part.count, kDtype<Real>) == part.count;
            from(rank)[i] = std::byte{!finite};
            if (finite) codec_->pack(x, part.count, from(rank) + part.packed);
        }
    }

    void decode(double scale) const {
        for (std::size_t i = 0; i < batch_.part_count; ++i) {
            const ddp_codec_part& part = batch_.parts[i];
            const bool finite = is_finite(i);
            for (std::size_t begin = 0; begin < part.count; begin += kChunk)
                decode(part, begin, std::min(kChunk, part.count - begin), finite,
                       static_cast<Real>(scale));
        }
    }

    bool needs_copy(const ddp_codec_part& part) const {
        return part.residual || batch_.dtype != kDtype<Real>;
    }

private:
    std::byte* from(std::size_t rank) const {
        return static_cast<std::byte*>(batch_.gathered) + rank * batch_.size;
    }
    std::size_t world() const { return static_cast<std::size_t>(batch_.world); }

    bool is_finite(std::size_t part) const {
        for (std::size_t r = 0; r < world(); ++r)
            if (from(r)[part] != std::byte{0}) return false;
        return true;
    }

    // gradient + residual, in x.
    void input(const ddp_codec_part& part, std::size_t begin, std::size_t n, Real* x) const {
        const bool same = batch_.dtype == kDtype<Real>;
        if (!same) convert(x, kDtype<Real>, gradient(part, begin), batch_.dtype, n);
        if (!part.residual) return;
        const Real* terms = same ? static_cast<const Real*>(part.gradient) + begin : x;
        const Real* residual = static_cast<const Real*>(part.residual) + begin;
        for (std::size_t i = 0; i < n; ++i) x[i] = terms[i] + residual[i];
    }

    void decode(const ddp_codec_part& part, std::size_t begin, std::size_t n, bool finite,
                Real scale) const {
        Real values[kChunk];
        if (finite && part.residual) {
            Real* residual = static_cast<Real*>(part.residual) + begin;
            input(part, begin, n, values);
            std::copy_n(values, n, residual);
            codec_->add(from(static_cast<std::size_t>(batch_.rank)) + part.packed, part.count,
                        begin, n, Real{-1}, residual);
        }
        if (finite)
            add_up(part, begin, n, scale, values);
        else
            std::fill_n(values, n, std::numeric_limits<Real>::quiet_NaN());
        convert(gradient(part, begin), batch_.dtype, values, kDtype<Real>, n);
    }

    void add_up(const ddp_codec_part& part, std::size_t begin, std::size_t n, Real scale,
                Real* sum) const {
        std::fill_n(sum, n, Real{0});
        for (std::size_t r = 0; r < world(); ++r)
            codec_->add(from(r) + part.packed, part.count, begin, n, Real{1}, sum);
        if (scale == 1) return;
        for (std::size_t i = 0; i < n; ++i) sum[i] *= scale;
    }

    void* gradient(const ddp_codec_part& part, std::size_t begin) const {
        return static_cast<std::byte*>(part.gradient) + begin * dtype_size(batch_.dtype);
    }

    const ddp_codec_batch& batch_;
    const std::unique_ptr<const Codec<Real>> codec_;
};

template <class Call>
auto with_coder(const ddp_codec_batch& batch, Call call) {
    if (batch.dtype == DDP_F64) return call(Coder<double>(batch));
    return call(Coder<float>(batch));
}

}  // namespace

std::size_t encode_scratch(const ddp_codec_batch& batch) {
    if (has_shares(batch.codec)) return 0;
    return with_coder(batch, [&](const auto& coder) {
        std::size_t most = 0;
        for (std::size_t i = 0; i < batch.part_count; ++i)
            if (coder.needs_copy(batch.parts[i])) most = std::max(most, batch.parts[i].count);
        return most * dtype_size(compute_dtype(batch.dtype));
    });
}

void encode(const ddp_codec_batch& batch) {
    const DefaultArithmeticScope arithmetic;
    if (has_shares(batch.codec)) return eight_bits::encode(batch);
    with_coder(batch, [](const auto& coder) { coder.encode(); });
}

void decode(const ddp_codec_batch& batch, double scale) {
    const DefaultArithmeticScope arithmetic;
    if (has_shares(batch.codec)) return eight_bits::decode(batch, scale);
    with_coder(batch, [scale](const auto& coder) { coder.decode(scale); });
}

void recode(const ddp_codec_batch& batch, double scale) {
    const DefaultArithmeticScope arithmetic;
    eight_bits::recode(batch, scale);
}

}  // namespace libddp::cpu
