// Where PowerSGD computes, and what it keeps from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/scratch.h"
#include "hooks/bucket.h"
#include "hooks/kept.h"
#include "hooks/state.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "kernels/on_device.h"

namespace libddp::powersgd {

// Where a bucket lies, and what happens to it there: on the CPU at once, on a device in the order
// of the bucket's stream.
class Site {
public:
    Site() = default;
    explicit Site(const ddp_bucket& bucket)
        : device_(bucket.device),
          stream_(bucket.stream),
          home_(bucket.home),
          dtype_(bucket.dtype) {}

    const ddp_device& device() const { return device_; }
    // Owns the memory of the errors, of each last Q and of a travelling bucket; null on the CPU.
    const StreamPtr& home() const { return home_; }
    const StreamPtr& stream() const { return stream_; }
    // The type of gradients, and below it that of P, Q and errors.
    ddp_dtype dtype() const { return dtype_; }
    ddp_dtype compute() const { return compute_dtype(dtype_); }

    // Elements of `parts` that a matrix needs here.
    std::size_t part_elements(const ddp_low_rank& m) const {
        const std::size_t parts = low_rank_parts(m.rows);
        return home_ && parts > 1 ? parts * m.rank * m.columns : 0;
    }
    // Since the bucket was filled home was given something to do with errors or a last Q.
    void use_home() { behind_home_ = true; }
    // Orders the operations that follow after those on home. Without this call nothing waits for
    // home, which may hold other buckets whose gradients are not there yet.
    void follow_home() const {
        if (stream_ && behind_home_) stream_->wait(*home_->record());
    }
    void transfer(const std::vector<ddp_segment>& segments, ddp_dtype dtype) const {
        if (!segments.empty()) libddp::transfer(stream_, segments, dtype);
    }
    void low_rank(ddp_low_rank_op op, const std::vector<ddp_low_rank>& items) const {
        stream_ ? on_device::low_rank(*stream_, op, items, dtype_)
                : cpu::low_rank(op, items, dtype_);
    }
    void thin(ddp_thin_op op, const std::vector<ddp_thin>& items,
              const ddp_thin_rules& rules = {}) const {
        stream_ ? on_device::thin(*stream_, op, items, compute(), rules)
                : cpu::thin(op, items, compute(), rules);
    }
    void leave_out(const std::vector<ddp_doubt>& items, const std::uint32_t* only_if) const {
        stream_ ? on_device::leave_out(*stream_, items, dtype_, only_if)
                : cpu::leave_out(items, dtype_, only_if);
    }

private:
    ddp_device device_{DDP_DEVICE_CPU, 0};
    StreamPtr stream_, home_;
    ddp_dtype dtype_ = DDP_F32;
    bool behind_home_ = false;
};

// The thin matrices of a bucket as they travel: all P, this rank's Q, and the sum or mean of all Q.
struct ThinMatrices {
    ScratchMemory p, own_q, q;
    std::size_t p_count = 0, q_count = 0;  // elements

    void find_memory(const Site& site) {
        const std::size_t item = dtype_size(site.compute());
        p.require(p_count * item, site.stream());
        own_q.require(q_count * item, site.stream());
        q.require(q_count * item, site.stream());
    }
};

// The state that is kept from step to step, and saved.
class State {
public:
    // rank: of the hook's options; a state of another is refused. whole_buckets: each Q belongs to
    // a bucket and not to a parameter. hook: names the hook in messages.
    State(std::int32_t rank, bool whole_buckets, std::string hook)
        : rank_(rank), whole_buckets_(whole_buckets), hook_(std::move(hook)), errors_(hook_) {}

    void note_step(std::int64_t number) { steps_.note(number); }
    void forget_step(std::int64_t number) { steps_.take_back(number); }
    std::int64_t steps() const { return steps_.begun(); }
    void resume(std::int64_t steps) { steps_.resume(steps); }
    // How many steps came before the current one.
    std::int64_t step() const { return steps_.begun() - 1; }

    // The error feedback of a parameter; zeros at first. References stay valid until load(). site:
    // where the bucket is.
    Kept& error(std::int32_t param, std::size_t count, Site& site);
    // The last Q of a parameter or a bucket; without columns at first, and zero where there has
    // been none.
    Kept& q(std::int32_t owner) { return qs_[owner]; }

    // As in Hook::set_buckets: in whose order the memory of each bucket is. Nothing where each Q
    // belongs to a parameter.
    void set_buckets(const std::vector<StreamPtr>& homes, std::int64_t timeout_ms);
    void separate_errors() { errors_.separate(); }

    void save(HookState& state) const;
    void load(const HookState& state);

private:
    using Array = HookState::Array;

    std::int64_t saved_steps(const HookState& state) const;
    Kept read_q(const Array& array, std::int32_t owner, HostCopies* copies) const;
    std::int32_t owner_of_q(const Array& array) const;
    void check_against_error(const Array& array, const Kept& q,
                             const std::map<std::int32_t, Kept>& errors) const;

    const std::int32_t rank_;
    const bool whole_buckets_;
    const std::string hook_;
    StepCounter steps_;
    ErrorFeedback errors_;
    std::map<std::int32_t, Kept> qs_;
    std::vector<StreamPtr> homes_;  // of buckets
};

}  // namespace libddp::powersgd
