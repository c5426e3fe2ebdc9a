// The buckets of a step, in the order of the plan: calls the communication hook for each once all
// of its gradients are there, strictly in that order.
//
// A bucket that no rank uses is left out. A bucket in which this rank lacks gradients is completed
// with zeros first. On request ranks vote before each bucket whether any of them used it.
//
// Any thread may complete a bucket. The one that does launches it and every ready bucket after it;
// others that complete a bucket meanwhile leave it to that thread and go on, so that no backward
// thread ever waits for another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/comparisons.h"
#include "core/gradients.h"
#include "core/installed_hook.h"
#include "core/layout.h"
#include "core/step.h"
#include "record/recorder.h"

namespace libddp {

class StepVotes;

class LaunchQueue {
public:
    // votes: leave with the last bucket of each step; null: there are none.
    LaunchQueue(InstalledHook& hook, Gradients& gradients, StepVotes* votes)
        : hook_(hook), gradients_(gradients), votes_(votes) {}

    void set_recorder(const record::Recorder& recorder) { recorder_ = recorder; }
    // New buckets. Not while a step is under way. Null: the queue keeps none until others come.
    void reset_layout(const Layout* layout, const ParamTable& table);
    // The result of a bucket goes there, where a collective makes it and nothing changes it later.
    // Then a bucket without sections has one in this step. take empty: nobody wants it.
    void set_take(std::size_t bucket, Collective::Take take);
    // In whose order the memory of each bucket is.
    std::vector<StreamPtr> homes() const;
    // All buckets wait for their gradients. The step lasts until the next call.
    void begin_step(Step& step, const Participation& participation);

    // One gradient of this bucket is in place. used: for a vote, whether it is this rank's own.
    // Lock-free. Launches what is ready.
    void gradient_in_place(std::int32_t bucket, bool used = true) {
        const auto b = static_cast<std::size_t>(bucket);
        // Releases the gradient to the thread that launches, whichever that is.
        if (used && step_->ballots) (*entries_)[b].now.used.store(true, std::memory_order_relaxed);
        if (pending_[b].fetch_sub(1, std::memory_order_acq_rel) == 1) launch_ready();
    }
    // The same for zeros that stand for a gradient which this rank does not have in this step.
    void gradient_absent(std::int32_t bucket, std::int32_t param);
    // Launches buckets that wait for no gradient of this rank.
    void launch_ready();
    // The tag of an operation that belongs to the step, but to no bucket. It runs on the first
    // link.
    OpTag step_tag(Purpose purpose) const;

    // Waits for a bucket and returns it, with the hook's result. Throws what went wrong, which has
    // then broken the group.
    const ddp_bucket& wait(std::size_t bucket);
    // Whether no bucket waits for a gradient any more.
    bool all_launched() const { return step_->next == entries_->size(); }
    // True if work of the current step is still under way. in_place_only: of buckets that are
    // ranges of the program's memory.
    bool in_flight(bool in_place_only = false) const;
    // Waits for what ranks compare behind this step's buckets, or behind those of the step before;
    // throws what they found, which has then broken the group.
    void finish_comparisons(bool of_step_before);
    // The verdict of a group that the context has left is none of the next one's.
    void forget_comparisons();
    // Waits for all launched buckets, well or badly, at most until the deadline.
    void drain(const Deadline& deadline);

    // Whether the bucket is, or was, sent in this step. After wait() it is final.
    bool sent(std::size_t bucket) const {
        const Launch& launch = (*entries_)[bucket].now;
        return launch.live && !launch.voted_out;
    }
    // Tells the clock when each bucket was on its way. After all were waited for.
    void tell_travel(StepClock& clock) const;
    ErrorInfo break_with(ErrorInfo error, std::size_t bucket) {
        return break_with(std::move(error), (*entries_)[bucket]);
    }

private:
    struct Entry {
        // These live as long as the layout. The fields of the bucket that belong to the step are
        // set when the step begins.
        ddp_bucket bucket;
        std::uint64_t content = 0;  // bytes of gradients, without gaps
        bool alone = false;
        bool in_place = false;
        std::shared_ptr<const std::string> label;
        std::shared_ptr<const void> memory;
        std::shared_ptr<const std::vector<BucketSection>> sections;  // of the layout
        std::shared_ptr<const std::vector<BucketSection>> taking;  // null: nobody takes the result
        // Works of the program's own that use the bucket. They may still do when the group has
        // broken, and `work` failed.
        std::shared_ptr<std::atomic<std::int32_t>> borrowers =
            std::make_shared<std::atomic<std::int32_t>>(0);
        Launch now;  // of the step

        bool in_flight() const { return (now.work && !now.work->done()) || *borrowers > 0; }
    };

    void launch(Entry& entry);
    OpTag tag_of(const Entry& entry) const;
    OpFacts facts(Purpose purpose) const;
    Hook::Target target_of(Entry& entry) const;
    WorkPtr start_with_vote(Entry& entry, const OpTag& tag);
    static void mark_end(Entry& entry, const OpTag& tag);
    WorkPtr ask_for_votes(Entry& entry, const OpTag& tag);
    WorkPtr reduce(Entry& entry, OpTag tag);
    void record_launch(const Entry& entry, record::EventKind kind, std::int64_t at_ns,
                       std::int64_t since_ns = 0) const;
    ErrorInfo break_with(ErrorInfo error, const Entry& entry);
    ErrorInfo in_this_group(ErrorInfo error) const;

    InstalledHook& hook_;
    Gradients& gradients_;
    StepVotes* const votes_;
    const Entry* last_live_ = nullptr;  // of the step
    record::Recorder recorder_;
    std::shared_ptr<Comparisons> comparisons_ = std::make_shared<Comparisons>();
    std::vector<WorkPtr> left_behind_;  // comparisons that no step has waited for yet
    Step* step_ = nullptr;
    std::uint64_t plan_hash_ = 0;
    std::shared_ptr<std::vector<Entry>> entries_ = std::make_shared<std::vector<Entry>>();
    // gradients of this step that each bucket waits for
    std::vector<std::atomic<std::int32_t>> pending_;
};

}  // namespace libddp
