// Where a bucket lies, and what PowerSGD does to it there: on the CPU at once, on a device in the order of the bucket's stream.
#pragma once

#include <vector>

#include "hooks/bucket.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "kernels/on_device.h"

namespace libddp::powersgd {

class Site {
public:
    Site() = default;
    explicit Site(const ddp_bucket& bucket)
        : device_(bucket.device), stream_(bucket.stream), home_(bucket.home), dtype_(bucket.dtype) {}

    const ddp_device& device() const { return device_; }
    // Whose memory errors and each last Q are, and whose that of a bucket on its way is; null on the CPU.
    const StreamPtr& home() const { return home_; }
    const StreamPtr& stream() const { return stream_; }
    // Of gradients, and of P, Q and errors.
    ddp_dtype dtype() const { return dtype_; }
    ddp_dtype compute() const { return compute_dtype(dtype_); }

    // Elements of `parts` that a matrix needs here.
    std::size_t part_elements(const ddp_low_rank& m) const {
        const std::size_t parts = low_rank_parts(m.rows);
        return home_ && parts > 1 ? parts * m.rank * m.columns : 0;
    }
    // Since the bucket was filled home was given something to do with errors or a last Q.
    void use_home() { behind_home_ = true; }
    // What follows comes after that. Without it nothing waits: what else is on home may be other buckets, whose gradients are not
    // there yet.
    void follow_home() const {
        if (stream_ && behind_home_) stream_->wait(*home_->record());
    }
    void transfer(const std::vector<ddp_segment>& segments, ddp_dtype dtype) const {
        if (!segments.empty()) libddp::transfer(stream_, segments, dtype);
    }
    void low_rank(ddp_low_rank_op op, const std::vector<ddp_low_rank>& items) const {
        stream_ ? on_device::low_rank(*stream_, op, items, dtype_) : cpu::low_rank(op, items, dtype_);
    }
    void thin(ddp_thin_op op, const std::vector<ddp_thin>& items, const ddp_thin_rules& rules = {}) const {
        stream_ ? on_device::thin(*stream_, op, items, compute(), rules) : cpu::thin(op, items, compute(), rules);
    }
    void leave_out(const std::vector<ddp_doubt>& items, const std::uint32_t* only_if) const {
        stream_ ? on_device::leave_out(*stream_, items, dtype_, only_if) : cpu::leave_out(items, dtype_, only_if);
    }

private:
    ddp_device device_{DDP_DEVICE_CPU, 0};
    StreamPtr stream_, home_;
    ddp_dtype dtype_ = DDP_F32;
    bool behind_home_ = false;
};

}  // namespace libddp::powersgd
