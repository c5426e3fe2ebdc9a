// Batches of gradients in blocks of numbers of 8 bits: what a rank sends, what the owner of a share
// makes of what all ranks have sent, and what becomes of the gradients.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/cpu/eight_bits.h"
#include "kernels/dtype.h"

namespace libddp::cpu::eight_bits {
namespace {

using libddp::eight_bits::block_begin;
using libddp::eight_bits::kMostBlock;

// A block of a part.
struct Block {
    std::size_t part, begin, count;  // begin: in the part
    std::size_t packed;              // in a message
};

template <class Real>
class Batch {
public:
    explicit Batch(const ddp_codec_batch& batch) : batch_(batch) {}

    void encode() const {
        std::vector<char> spoilt(batch_.part_count);
        each_block([&](const Block& block) {
            Real values[kMostBlock];
            const Real* x = input(block, values);
            if (!pack(rounding(block), x, block.count, sent(block)))
                spoilt[batch_.places[block.part].whole] = 1;
        });
        each_block([&](const Block& block) {
            if (spoilt[batch_.places[block.part].whole]) {
                const Real nan = std::numeric_limits<Real>::quiet_NaN();
                std::memcpy(sent(block), &nan, sizeof nan);
            } else if (batch_.keeps) {
                keep(block);
            }
        });
    }

    void decode(Real scale) const {
        each_block([&](const Block& block) {
            Real values[kMostBlock];
            add_up(block, scale, values);
            if (!std::isnan(values[0])) keep(block);
            convert(gradient(block), batch_.dtype, values, kDtype, block.count);
        });
    }

    void recode(Real scale) const {
        each_block([&](const Block& block) {
            Real values[kMostBlock];
            add_up(block, scale, values);
            pack(rounding(block), values, block.count, sent(block));
            Real* loss = at(batch_.places[block.part].loss, block);
            if (!loss) return;
            add(batch_.codec.kind, sent(block), block.count, Real{-1}, values);
            for (std::size_t i = 0; i < block.count; ++i) loss[i] = values[i] / scale;
        });
    }

private:
    static constexpr ddp_dtype kDtype = std::is_same_v<Real, double> ? DDP_F64 : DDP_F32;

    template <class Use>
    void each_block(Use use) const {
        for (std::size_t i = 0; i < batch_.part_count; ++i) {
            const ddp_codec_part& part = batch_.parts[i];
            const std::size_t size = batch_.codec.block;
            for (std::size_t begin = 0; begin < part.count; begin += size)
                use(Block{i, begin, std::min(size, part.count - begin),
                          part.packed + block_begin<Real>(size, begin / size)});
        }
    }
    const ddp_codec_part& part(const Block& block) const { return batch_.parts[block.part]; }
    static Real* at(void* numbers, const Block& block) {
        return numbers ? static_cast<Real*>(numbers) + block.begin : nullptr;
    }
    std::byte* sent(const Block& block) const {
        return static_cast<std::byte*>(batch_.sent) + block.packed;
    }
    void* gradient(const Block& block) const {
        return static_cast<std::byte*>(part(block).gradient) +
               block.begin * dtype_size(batch_.dtype);
    }
    Rounding rounding(const Block& block) const {
        const ddp_codec_place& place = batch_.places[block.part];
        return {batch_.codec.kind,
                batch_.codec.stochastic != 0,
                {batch_.step, place.first + block.begin, place.param, batch_.drawer}};
    }

    // gradient + residual: in `values`, or where they are.
    const Real* input(const Block& block, Real* values) const {
        const Real* residual = at(part(block).residual, block);
        if (batch_.dtype == kDtype && !residual) return static_cast<const Real*>(gradient(block));
        convert(values, kDtype, gradient(block), batch_.dtype, block.count);
        if (residual)
            for (std::size_t i = 0; i < block.count; ++i) values[i] += residual[i];
        return values;
    }

    // gradient + residual - sent, and what the sum has lost.
    void keep(const Block& block) const {
        Real* residual = at(part(block).residual, block);
        if (!residual) return;
        Real values[kMostBlock];
        std::copy_n(input(block, values), block.count, residual);
        add(batch_.codec.kind, sent(block), block.count, Real{-1}, residual);
        if (const Real* loss = at(batch_.places[block.part].loss, block))
            for (std::size_t i = 0; i < block.count; ++i) residual[i] += loss[i];
    }

    void add_up(const Block& block, Real scale, Real* sum) const {
        std::fill_n(sum, block.count, Real{0});
        for (std::int32_t r = 0; r < batch_.world; ++r)
            add(batch_.codec.kind,
                static_cast<const std::byte*>(batch_.gathered) +
                    static_cast<std::size_t>(r) * batch_.size + block.packed,
                block.count, Real{1}, sum);
        if (scale == 1) return;
        for (std::size_t i = 0; i < block.count; ++i) sum[i] *= scale;
    }

    const ddp_codec_batch& batch_;
};

template <class Call>
void with_batch(const ddp_codec_batch& batch, Call call) {
    if (batch.dtype == DDP_F64) return call(Batch<double>(batch));
    return call(Batch<float>(batch));
}

}  // namespace

void encode(const ddp_codec_batch& batch) {
    with_batch(batch, [](const auto& all) { all.encode(); });
}

void decode(const ddp_codec_batch& batch, double scale) {
    with_batch(batch, [scale]<class Real>(const Batch<Real>& all) {
        all.decode(static_cast<Real>(scale));
    });
}

void recode(const ddp_codec_batch& batch, double scale) {
    with_batch(batch, [scale]<class Real>(const Batch<Real>& all) {
        all.recode(static_cast<Real>(scale));
    });
}

}  // namespace libddp::cpu::eight_bits
