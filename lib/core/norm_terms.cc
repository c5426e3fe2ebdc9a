#include "core/norm_terms.h"

#include <algorithm>
#include <cmath>

#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp {
namespace {

constexpr cpu::NormKind kAll[] = {cpu::NormKind::kMagnitudes, cpu::NormKind::kSquares,
                                  cpu::NormKind::kLargest};

bool holds(std::uint8_t kinds, cpu::NormKind kind) {
    return ((kinds >> static_cast<unsigned>(kind)) & 1u) != 0;
}

}  // namespace

NormTerms::NormTerms(const Layout& layout, const Model& model,
                     const std::vector<std::uint8_t>& kinds)
    : buckets_(layout.size()), ranges_(kinds.size()) {
    for (const cpu::NormKind kind : kAll)
        if (std::any_of(kinds.begin(), kinds.end(),
                        [kind](std::uint8_t of) { return holds(of, kind); }))
            kinds_.push_back(kind);
    for (std::size_t b = 0; b < layout.size(); ++b) {
        const ddp_bucket described = layout.describe(b);
        Bucket& bucket = buckets_[b];
        bucket.block = DDP_BACKEND_BLOCK_BYTES / dtype_size(described.dtype);
        bucket.size = described.count;
        bucket.segments.begin = segments_.size();
        std::vector<const BucketTensor*> tensors;
        for (const BucketTensor& tensor : described.tensors)
            if (kinds[static_cast<std::size_t>(tensor.param)] != 0 && tensor.count > 0 &&
                !model.table[tensor.param].sparse && !described.stream)
                tensors.push_back(&tensor);
        std::sort(tensors.begin(), tensors.end(),
                  [](const auto* a, const auto* b_) { return a->gradient < b_->gradient; });
        for (const BucketTensor* const tensor : tensors) {
            const auto param = static_cast<std::size_t>(tensor->param);
            std::size_t at = described.first_element(*tensor);
            const std::size_t end = at + static_cast<std::size_t>(tensor->count);
            ranges_[param].begin = segments_.size();
            while (at < end) {
                const std::size_t next = std::min(end, (at / bucket.block + 1) * bucket.block);
                segments_.push_back({at, next - at, kinds[param]});
                at = next;
            }
            ranges_[param].end = segments_.size();
        }
        bucket.segments.end = segments_.size();
    }
    terms_.resize(segments_.size() * kinds_.size());
}

void NormTerms::count(std::size_t bucket, const void* data, std::size_t first, std::size_t count,
                      ddp_dtype dtype) {
    const Range range = buckets_[bucket].segments;
    const auto begin = segments_.begin() + static_cast<std::ptrdiff_t>(range.begin);
    const auto end = segments_.begin() + static_cast<std::ptrdiff_t>(range.end);
    auto segment = std::partition_point(
        begin, end, [first](const Segment& other) { return other.first < first; });
    const auto from = segment;
    for (; segment != end && segment->first < first + count; ++segment) {
        const auto* const at =
            static_cast<const std::byte*>(data) + (segment->first - first) * dtype_size(dtype);
        for (std::size_t k = 0; k < kinds_.size(); ++k)
            if (holds(segment->kinds, kinds_[k]))
                term(static_cast<std::size_t>(segment - segments_.begin()), k) =
                    cpu::norm_terms(at, segment->count, dtype, kinds_[k]);
    }
    counted_.fetch_add(static_cast<std::size_t>(segment - from), std::memory_order_relaxed);
}

void NormTerms::count_share(std::size_t bucket, const void* result, ddp_dtype dtype, int rank,
                            int world) {
    const Bucket& of = buckets_[bucket];
    const auto [begin, end] = share_of_blocks(of.size, of.block, rank, world);
    count(bucket, static_cast<const std::byte*>(result) + begin * dtype_size(dtype), begin,
          end - begin, dtype);
}

double NormTerms::of(std::int32_t param, cpu::NormKind kind) const {
    const auto k =
        static_cast<std::size_t>(std::find(kinds_.begin(), kinds_.end(), kind) - kinds_.begin());
    const Range range = ranges_[static_cast<std::size_t>(param)];
    double sum = 0;
    for (std::size_t segment = range.begin; segment < range.end; ++segment)
        sum = cpu::add_norm_terms(sum, terms_[segment * kinds_.size() + k], kind);
    return sum;
}

bool NormTerms::finite(std::int32_t param) const {
    const Range range = ranges_[static_cast<std::size_t>(param)];
    return std::all_of(terms_.begin() + static_cast<std::ptrdiff_t>(range.begin * kinds_.size()),
                       terms_.begin() + static_cast<std::ptrdiff_t>(range.end * kinds_.size()),
                       [](double term) { return std::isfinite(term); });
}

void NormTerms::clear() {
    std::fill(terms_.begin(), terms_.end(), 0.0);
    counted_.store(0, std::memory_order_relaxed);
}

}  // namespace libddp
