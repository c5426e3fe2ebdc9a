// Packed gradients as other ranks sent them, and gradients of any bits. The first bytes say how
// they are packed.
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/target.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"

namespace fuzz::codecs {
namespace {

using namespace libddp;

std::size_t align_to_8(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

// Memory of exactly so many bytes, so that one beyond is noticed.
class Memory {
public:
    explicit Memory(std::size_t bytes, std::size_t alignment = 8)
        : memory_(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes)), &std::free),
          bytes_(bytes) {
        std::memset(memory_.get(), 0, bytes);
    }
    std::byte* data() const { return memory_.get(); }
    // Fills the memory with the pattern, again and again.
    void fill(std::string_view pattern) const {
        if (pattern.empty()) return;
        for (std::size_t i = 0; i < bytes_; ++i)
            memory_.get()[i] = static_cast<std::byte>(pattern[i % pattern.size()]);
    }

private:
    std::unique_ptr<std::byte, void (*)(void*)> memory_;
    std::size_t bytes_;
};

ddp_codec codec_of(Reader& bytes) {
    static const double ratios[] = {1e-9, 0.01, 0.3, 0.5, 1};
    const auto kind = static_cast<ddp_codec_kind>(1 + bytes.below(6));
    const std::size_t block = bytes.byte() * (kind == DDP_CODEC_ONEBIT ? 8U : 1U);
    const ddp_codec codec{kind, 0, block, ratios[bytes.below(5)]};
    return has_shares(codec) ? ddp_codec{kind, block % 2 == 1, 32 + 7 * block, 0} : codec;
}

}  // namespace

DDP_FUZZ_TARGET(codecs, input) {
    static const ddp_dtype dtypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64};
    Reader bytes(input);
    const ddp_codec codec = codec_of(bytes);
    const ddp_dtype dtype = dtypes[bytes.below(4)];
    const int world = 1 + static_cast<int>(bytes.below(3));
    const int rank = static_cast<int>(bytes.below(static_cast<std::size_t>(world)));
    const bool encodes = bytes.flag();
    const std::size_t real = dtype == DDP_F64 ? 8 : 4;

    std::vector<Memory> memory;
    std::vector<ddp_codec_part> parts(1 + bytes.below(3));
    std::vector<ddp_codec_place> places(parts.size());
    std::size_t size = has_shares(codec) ? 0 : align_to_8(parts.size());
    for (ddp_codec_part& part : parts) {
        part.count = 1 + bytes.number<std::uint16_t>() % 5000;
        part.gradient = memory.emplace_back(align_to_8(part.count * dtype_size(dtype))).data();
        part.residual =
            bytes.flag() ? memory.emplace_back(align_to_8(part.count * real)).data() : nullptr;
        part.packed = size;
        size += align_to_8(packed_size(codec, dtype, part.count));
    }
    const std::string_view pattern = bytes.rest();
    const Memory gathered(size * static_cast<std::size_t>(world));
    (encodes ? memory.front() : gathered).fill(pattern);
    ddp_codec_batch batch{
        codec, parts.data(), parts.size(),  dtype,   rank, world, 0, gathered.data(),
        size,  nullptr,      places.data(), nullptr, 1,    2,     0};
    const Memory sent(size);
    batch.sent = sent.data();
    if (encodes) {
        const Memory scratch((cpu::encode_scratch(batch) + 64) / 64 * 64, 64);
        batch.scratch = scratch.data();
        cpu::encode(batch);
    } else if (has_shares(codec)) {
        cpu::recode(batch, 0.5);
    }
    cpu::decode(batch, 0.5);
}

}  // namespace fuzz::codecs
