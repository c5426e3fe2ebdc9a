// The buckets of a step, in the order of the plan: calls the communication hook for each once all of its gradients are
// there, strictly in that order.
//
// A bucket that no rank uses is left out. A bucket in which this rank lacks gradients is completed with zeros first. On
// request ranks vote before each bucket whether any of them used it.
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

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/bucket_store.h"
#include "core/participation.h"
#include "core/step_clock.h"
#include "hooks/hook.h"
#include "record/recorder.h"

namespace libddp {

// What the queue leaves to its owner, on the thread that launches.
class LaunchOwner {
public:
    // The last thing before a bucket is sent: puts zeros where this rank has no gradient and knew so before the step, and
    // brings gradients of devices to `place`.
    virtual void complete_bucket(const ddp_bucket& bucket, const Hook::Target& target) = 0;
    // Reduces a parameter that is alone in its bucket, because it goes a way of its own, without the hook.
    virtual WorkPtr reduce_alone(Group& group, std::int32_t param, const OpTag& tag) = 0;

protected:
    ~LaunchOwner() = default;
};

class LaunchQueue {
public:
    struct Step {
        std::int64_t synced_steps = 0;  // for hooks, and compared
        std::int64_t step = 0;          // for messages, and compared between ranks: one that did not sync is behind
        std::uint64_t agreement = 0;    // of what else must be the same on all ranks; compared
        bool votes = false;
    };

    LaunchQueue(std::shared_ptr<Group> group, const ContextNumber& number, LaunchOwner& owner) : owner_(owner) {
        set_group(std::move(group), number);
    }

    void set_group(std::shared_ptr<Group> group, const ContextNumber& number);
    void set_recorder(const record::Recorder& recorder) { recorder_ = recorder; }
    // New buckets. Not while a step is under way.
    void reset_layout(const BucketStore& store, const ParamTable& table, bool mean);
    // After that, when nothing else is left to do: the hook may fail.
    void tell_hook_buckets() const;
    void set_hook(HookPtr hook);
    const HookPtr& hook() const { return hook_; }
    // What the hook was given, and what it gave to collectives, since it was installed.
    std::uint64_t hook_bytes_in() const { return hook_bytes_in_; }
    // What transports copied of the buckets.
    std::uint64_t copied_bytes() const { return copied_before_ + traffic_->copied.load(std::memory_order_relaxed); }
    std::uint64_t hook_bytes_out() const { return traffic_->sent.load(std::memory_order_relaxed); }

    // All buckets wait for their gradients again.
    void arm(const Step& step, const Participation& participation);

    // One gradient of this bucket is in place. used: for a vote, whether it is this rank's own. Lock-free.
    // Launches what is ready.
    void gradient_in_place(std::int32_t bucket, bool used = true) {
        const auto b = static_cast<std::size_t>(bucket);
        if (used && step_.votes) used_[b].store(true, std::memory_order_relaxed);
        if (pending_[b].fetch_sub(1, std::memory_order_acq_rel) == 1) launch_ready();
    }
    // The same for zeros that stand for a gradient which this rank does not have in this step.
    void gradient_absent(std::int32_t bucket, std::int32_t param);
    // Launches buckets that wait for no gradient of this rank.
    void launch_ready();
    // The tag of an operation that belongs to the step, but to no bucket. It runs on the first link.
    OpTag step_tag(Purpose purpose) const;

    // Waits for a bucket and returns it, with the hook's result. Throws what went wrong, which has then broken the
    // group.
    const ddp_bucket& wait(std::size_t bucket);
    // Whether no bucket waits for a gradient any more.
    bool all_launched() const { return next_ == entries_->size(); }
    // True if work of the current step is still under way.
    bool in_flight() const;
    // The same of buckets that are ranges of the program's memory.
    bool in_flight_in_place() const;
    // Waits for all launched buckets, well or badly, at most until the deadline.
    void drain(const Deadline& deadline);

    // Whether the bucket is, or was, sent in this step. After wait() it is final.
    bool sent(std::size_t bucket) const { return (*entries_)[bucket].live && !(*entries_)[bucket].voted_out; }
    // Tells the clock when each bucket was on its way. After all were waited for.
    void tell_travel(StepClock& clock) const;
    ErrorInfo break_with(ErrorInfo error, std::size_t bucket) {
        return break_with(std::move(error), (*entries_)[bucket]);
    }

private:
    struct Entry {
        ddp_bucket bucket;
        std::uint64_t content = 0;  // bytes of gradients, without gaps
        WorkPtr work;               // null: the hook finished at once
        ErrorInfo error;            // of the hook call itself
        // Of a bucket that is sent. finished: where there is no work that knows.
        StepClock::Point launched_at, finished_at;
        bool launched = false;
        bool alone = false;
        bool in_place = false;
        bool live = true;         // some rank uses it, as far as is known before the step
        bool has_absent = false;  // zeros must stand in for a gradient
        bool voted_out = false;
        std::shared_ptr<std::uint8_t> ballot;
        std::shared_ptr<const std::string> label;
        std::shared_ptr<const void> memory;
        // Works of the program's own that use the bucket. They may still do when the group has broken, and `work` failed.
        std::shared_ptr<std::atomic<std::int32_t>> borrowers = std::make_shared<std::atomic<std::int32_t>>(0);

        bool in_flight() const { return (work && !work->done()) || *borrowers > 0; }
    };

    // All operations of a bucket run on one link, whichever buckets are left out: the one that its memory comes from.
    ddp_group& link_of(const Entry& entry) const;
    void launch(Entry& entry);
    Hook::Target target_of(Entry& entry) const;
    WorkPtr start_with_vote(Entry& entry, const OpTag& tag);
    static void mark_end(Entry& entry, const OpTag& tag);
    WorkPtr ask_for_votes(Entry& entry, const OpTag& tag);
    WorkPtr call_hook(Entry& entry, OpTag tag);
    void record_launch(const Entry& entry, record::EventKind kind, std::int64_t at_ns, std::int64_t since_ns = 0) const;
    ErrorInfo break_with(ErrorInfo error, const Entry& entry);
    ErrorInfo in_this_group(ErrorInfo error) const;
    ErrorInfo with_bucket(ErrorInfo error, const Entry& entry, const std::string& text) const;

    std::shared_ptr<Group> group_;
    const ContextNumber* number_ = nullptr;
    std::vector<std::unique_ptr<ddp_group>> links_;  // hooks borrow them: they stay where they are
    record::Recorder recorder_;
    HookPtr hook_;
    std::uint64_t plan_hash_ = 0;
    std::uint32_t hook_hash_ = 0;
    std::atomic<std::uint64_t> hook_bytes_in_{0};
    std::shared_ptr<Traffic> traffic_;
    std::uint64_t copied_before_ = 0;  // under earlier hooks
    LaunchOwner& owner_;
    Step step_;
    std::shared_ptr<std::vector<Entry>> entries_ = std::make_shared<std::vector<Entry>>();
    std::vector<std::atomic<std::int32_t>> pending_;
    std::vector<std::atomic<bool>> used_;  // does this rank have a gradient for the bucket; only for votes
    std::atomic<std::uint32_t> requests_{0};
    std::size_t next_ = 0;  // touched only by the launching thread
    // Likewise. With votes on several links: done when the hook was called for the bucket that was launched last.
    WorkPtr last_called_;
};

}  // namespace libddp
