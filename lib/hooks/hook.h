// A communication hook: what happens to a bucket between "ready" and "reduced". Built-in hooks and
// a user's are the same to the queue that calls them; what a built-in one knows and may do is what
// ddp/hook.h offers to everybody.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "hooks/bucket.h"

namespace libddp {

class HookState;

class Hook {
public:
    virtual ~Hook() = default;

    // Where the gradients of a bucket of a device are to be put, converted, before reduce(): its
    // buffer, or a place of the hook's, in the order of ddp_bucket::home. Not asked where reduce()
    // may run on another thread than the one that launches.
    struct Target {
        void* buffer = nullptr;
        ddp_dtype dtype = DDP_F32;
    };
    virtual Target target(ddp_bucket& bucket) { return {bucket.buffer, bucket.dtype}; }

    // Starts what turns this rank's gradients into those of all ranks. Returns the work to wait
    // for; null: done already. Throws Error. Buckets come in the same order on every rank, from one
    // thread at a time. A device's bucket is read and written in the order of ddp_bucket::stream.
    // tag: of the operations that it submits.
    virtual WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) = 0;

    // The buckets from now on. Between steps, when nothing that was enqueued before is ahead of the
    // homes any more.
    struct Buckets {
        std::vector<StreamPtr> homes;  // ddp_bucket::home of each
        std::int64_t timeout_ms = 0;   // how long a device may take
    };
    // Frees what is kept for buckets, and not for parameters, as far as it is of no more use.
    virtual void set_buckets(const Buckets&) {}

    // As in ddp_use_hook. Both are compared between ranks.
    virtual std::string name() const = 0;
    virtual std::string options() const { return ""; }
    // Whether the result is that of an allreduce, as it is.
    virtual bool is_allreduce() const { return false; }
    // Whether reduce() may run on the progress thread.
    virtual bool any_thread() const { return true; }
    // Whether ranks that apply the results stay alike.
    virtual bool keeps_models_alike() const { return true; }
    // Whether the work of reduce() ends after all operations that it has begun.
    virtual bool ends_last() const { return true; }
    // Whether a function of the program sees results, and may use them, before the step ends.
    virtual bool gives_results_early() const { return false; }
    // Whether what reduce() enqueues on devices is right for later steps as well, as part of a
    // graph: the host decides nothing from step to step, and all memory is there after one step.
    virtual bool can_be_captured() const { return false; }
    // Whether another cut into buckets changes results, beyond rounding.
    virtual bool depends_on_buckets() const { return false; }

    // The step whose buckets had this ddp_bucket::step has failed; buckets with the same number
    // come again. Between steps only.
    virtual void forget_step(std::int64_t) {}
    // How many synced steps the hook has counted. Ranks on which the last step failed go on with
    // the number of the others.
    virtual std::int64_t steps() const { return 0; }
    virtual void resume(std::int64_t) {}

    // Saves the state without which training would go on differently. Between steps only. load()
    // throws before it changes anything.
    virtual void save(HookState&) const {}
    virtual void load(const HookState&) {}
};

using HookPtr = std::shared_ptr<Hook>;

}  // namespace libddp
