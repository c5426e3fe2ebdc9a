// Terms of norms of the gradients in host memory, in segments. A segment is a parameter's part in a
// block of its bucket (DDP_BACKEND_BLOCK_BYTES). So ranks can share the counting, and each segment
// has the same bits whoever counts it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout.h"
#include "kernels/arithmetic.h"

namespace libddp {

class NormTerms {
public:
    // kinds: for each parameter, those of the norms that count it, as bits.
    NormTerms(const Layout& layout, const Model& model, const std::vector<std::uint8_t>& kinds);

    // Whether the terms of a parameter are here.
    bool has(std::int32_t param) const { return !ranges_[static_cast<std::size_t>(param)].empty(); }
    // Counts the blocks of a bucket that begin with this element. data: the elements from there on,
    // as far as they are here; `dtype` is the result's, whose elements may be narrower than the
    // bucket's. Any thread, each block once.
    void count(std::size_t bucket, const void* data, std::size_t first, std::size_t count,
               ddp_dtype dtype);
    // For a bucket that no collective counts: this rank counts its part of the blocks. result: of
    // the whole bucket.
    void count_share(std::size_t bucket, const void* result, ddp_dtype dtype, int rank, int world);
    // All, to be replaced by the sums over ranks: what a rank has not counted is 0.
    std::vector<double>& all() { return terms_; }
    // Segments that this rank has counted, and those of a bucket.
    std::size_t counted() const { return counted_.load(std::memory_order_relaxed); }
    std::size_t segments(std::size_t bucket) const {
        return buckets_[bucket].segments.end - buckets_[bucket].segments.begin;
    }
    // All segments of a parameter together.
    double of(std::int32_t param, cpu::NormKind kind) const;
    // Whether this rank has counted no term that is not finite.
    bool finite(std::int32_t param) const;
    void clear();

private:
    struct Range {
        std::size_t begin = 0, end = 0;
        bool empty() const { return begin == end; }
    };
    struct Segment {
        std::size_t first = 0, count = 0;  // elements of the bucket
        std::uint8_t kinds = 0;
    };
    struct Bucket {
        Range segments;
        std::size_t block = 0, size = 0;  // in elements
    };

    double& term(std::size_t segment, std::size_t kind) {
        return terms_[segment * kinds_.size() + kind];
    }

    std::vector<cpu::NormKind> kinds_;  // that some norm has
    std::vector<Bucket> buckets_;
    std::vector<Segment> segments_;  // in the order of the buckets and their elements
    std::vector<Range> ranges_;      // for each parameter, its segments
    std::vector<double> terms_;      // for each segment, one of each kind
    // Relaxed: it is read when the collectives that count have ended.
    std::atomic<std::size_t> counted_{0};
};

}  // namespace libddp
