// Launches buckets: calls the communication hook for each bucket once all of its gradients are there, strictly in plan
// order.
//
// Any thread may complete a bucket. The one that does launches it and every ready bucket after it; others that
// complete a bucket meanwhile leave it to that thread and go on, so that no backward thread ever waits for another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/bucket_store.h"
#include "ddp/hook.h"
#include "hooks/bucket.h"

namespace libddp {

// A hook and its state. The default one is the library's own.
struct CommHook {
    ddp_comm_hook_fn fn = nullptr;
    std::shared_ptr<void> user_data;  // its deleter is the user's destroy function
    bool is_default = false;
};

CommHook default_hook();

class Launcher {
public:
    explicit Launcher(std::shared_ptr<Group> group) : handle_{std::move(group)} {}

    // New buckets. Not while a step is under way.
    void reset_layout(const BucketStore& store, const ParamTable& table, bool mean);
    void set_hook(CommHook hook) { hook_ = std::move(hook); }
    bool uses_default_hook() const { return hook_.is_default; }

    // All buckets wait for their gradients again.
    // synced_steps: for hooks. step: for messages, and compared between ranks: one that did not sync is behind.
    void arm(std::int64_t synced_steps, std::int64_t step, bool prescaled);

    // One gradient of this bucket is in place. Lock-free. Launches what is ready.
    void gradient_in_place(std::int32_t bucket) {
        if (pending_[static_cast<std::size_t>(bucket)].fetch_sub(1, std::memory_order_acq_rel) == 1) launch_ready();
    }

    // Waits for a bucket and returns it, with the hook's result. Throws what went wrong, which has then broken the
    // group.
    const ddp_bucket& wait(std::size_t bucket);
    // True if work of the current step is still under way.
    bool in_flight() const;
    // Waits for all launched buckets, well or badly, at most until the deadline.
    void drain(const Deadline& deadline);

private:
    struct Slot {
        ddp_bucket bucket;
        WorkPtr work;     // null: the hook finished at once
        ErrorInfo error;  // of the hook call itself
        bool launched = false;
        std::shared_ptr<const std::string> label;
        std::shared_ptr<const void> memory;
    };

    void launch_ready();
    void launch_consecutive();
    void launch(Slot& slot);
    ErrorInfo break_with(ErrorInfo error, const Slot& slot);
    ErrorInfo with_bucket(ErrorInfo error, const Slot& slot) const;

    ddp_group handle_;
    CommHook hook_ = default_hook();
    std::uint64_t plan_hash_ = 0;
    std::int64_t step_ = 0;
    std::vector<Slot> slots_;
    std::unique_ptr<std::atomic<std::int32_t>[]> pending_;
    std::atomic<std::uint32_t> requests_{0};
    std::size_t next_ = 0;  // touched only by the launching thread
};

}  // namespace libddp
