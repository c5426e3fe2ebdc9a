// New values of parameters on their way from the rank that has updated them to all others, through
// the memory of the buckets: between the end of a step and the first gradient of the next
// (DDP_CONTEXT_SHARD).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/work.h"
#include "core/block_update.h"
#include "core/observer.h"
#include "ddp/shard.h"
#include "util/mutex.h"

namespace libddp {

// Updates the values of pieces from their gradients.
struct Updates {
    std::function<void(const std::vector<const ddp_piece*>& pieces)> pieces;  // empty: nothing does
    UpdateElementsFn elements{};  // empty: it needs whole pieces
};

class Publisher final : public Observer {
public:
    ~Publisher() override;

    // It updates the pieces of each bucket as soon as their gradients are final, and
    // their values are sent then.
    void set_updates(ReducerParts& parts, Updates updates);
    bool updates() const { return static_cast<bool>(updates_.pieces); }
    // Calls it for a bucket with its result, and sends the values. Returns the work to wait for;
    // null: no other rank has or needs one.
    WorkPtr update(ReducerParts& parts, const ddp_bucket& bucket, const OpTag& tag);

    // Sends this rank's values, bucket by bucket in the order of registration, as forward passes
    // go. Collective. Between steps.
    void publish(ReducerParts& parts);
    // The parameter has its new value on this rank, if one was published. stream: in whose order,
    // on the parameter's device, for which the host then does not wait. Throws what went wrong. Any
    // thread.
    void wait(ReducerParts& parts, std::int32_t param, std::optional<void*> stream);
    // Throws INVALID_STATE if the program has not waited for the value of this parameter: its
    // gradient is that of an old one. Any thread.
    void require_asked(const ReducerParts& parts, std::int32_t param);
    // Waits for values that are under way, well or badly, at most until the deadline.
    void drain(const Deadline& deadline);
    // Before another group comes: takes the values that are under way, if the group is whole.
    // Throws if the program has not published them.
    void leave_group(ReducerParts& parts);
    // Then: whether ranks may have different values.
    bool torn() const { return torn_; }
    // After another group has come. Gradients in buckets are zero, if values stood there. differ:
    // torn() on any rank of it.
    void enter_group(ReducerParts& parts, bool differ);

    // In an elastic job: no step begins until release(), because the values are to come from what
    // ranks have kept. torn: and ranks have different ones.
    void hold(bool torn);
    void release() { held_ = false; }

    void on_layout(ReducerParts& parts) override;
    // A gradient would overwrite values on their way.
    void on_begin(ReducerParts& parts) override;
    void on_end(ReducerParts& parts) override;

private:
    struct Parcel;

    static std::shared_ptr<Parcel> send(const ReducerParts& parts, const ddp_bucket& bucket,
                                        const OpTag& tag, bool at_once);
    void update_pieces(const ReducerParts& parts, const ddp_bucket& bucket);
    std::shared_ptr<BlockUpdate> in_blocks(const ReducerParts& parts, const ddp_bucket& bucket);
    void let_go() DDP_REQUIRES(mutex_);
    void require_published(const ReducerParts& parts) const;
    void finish(ReducerParts& parts);
    void take(ReducerParts& parts, std::size_t bucket);
    std::shared_ptr<Parcel> find(std::size_t bucket);
    void put(std::size_t bucket, std::shared_ptr<Parcel> parcel);

    Updates updates_;
    std::vector<std::shared_ptr<BlockUpdate>> blocks_;  // by bucket; null: whole pieces
    // Parcels that the program has not waited for: mostly none, and then a gradient takes no lock.
    std::atomic<std::int32_t> unasked_{0};
    Mutex mutex_;
    // by bucket; none before the first call
    std::map<std::size_t, std::shared_ptr<Parcel>> parcels_ DDP_GUARDED_BY(mutex_);
    // Ranks may have different values: a step has given each rank what it is to update.
    std::atomic<bool> due_{false};
    bool torn_ = false;  // the same, since the group before broke in the middle of that
    bool held_ = false;
};

}  // namespace libddp
