// The hook of a context, its name and options as ranks compare them, the links it is called with,
// and what it sends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/context_number.h"
#include "comm/group.h"
#include "hooks/hook.h"

namespace libddp {

class InstalledHook {
public:
    InstalledHook(std::shared_ptr<Group> group, const ContextNumber& number, HookPtr hook) {
        set_group(std::move(group), number);
        set(std::move(hook), {});
    }

    void set_group(std::shared_ptr<Group> group, const ContextNumber& number);
    // homes: of the buckets.
    void set(HookPtr hook, const std::vector<StreamPtr>& homes);
    void tell_buckets(const std::vector<StreamPtr>& homes);
    // A synced step has ended. Then all is there that another one uses that agrees on the same
    // (Step::agreement) in this group, with these buckets.
    void ran(std::uint64_t agreement) { ran_ = agreement; }
    bool has_run(std::uint64_t agreement) const { return ran_ == agreement; }

    const HookPtr& hook() const { return hook_; }
    // The function continues every reduction. Empty: nothing does.
    using Continuation = std::function<WorkPtr(const ddp_bucket& bucket, const OpTag& tag)>;
    void continue_with(Continuation continuation);
    // The hook, and what continues it.
    const HookPtr& running() const { return running_; }
    Group& group() const { return *group_; }
    // All operations of a bucket run on one link, whichever buckets are left out: the one that its
    // memory comes from.
    ddp_group& link_of(const ddp_bucket& bucket) const {
        return *links_[static_cast<std::size_t>(bucket.index) % group_->link_count()];
    }
    // The facts of an operation of the context, with the hook.
    OpFacts facts(Purpose purpose) const;
    // It is about to be given so many bytes of gradients. Returns where to count what it gives to
    // collectives.
    const std::shared_ptr<Traffic>& given(std::uint64_t bytes) {
        bytes_in_ += bytes;
        return traffic_;
    }

    // Bytes that the hook was given, and that it gave to collectives, since it was installed.
    std::uint64_t bytes_in() const { return bytes_in_; }
    std::uint64_t bytes_out() const { return traffic_->sent.load(std::memory_order_relaxed); }
    // Bytes of the buckets that transports copied.
    std::uint64_t copied_bytes() const {
        return copied_before_ + traffic_->copied.load(std::memory_order_relaxed);
    }

private:
    std::shared_ptr<Group> group_;
    const ContextNumber* number_ = nullptr;
    std::vector<std::unique_ptr<ddp_group>> links_;  // hooks borrow them: they stay where they are
    HookPtr hook_, running_;
    Continuation continuation_;
    std::uint32_t hash_ = 0;
    std::optional<std::uint64_t> ran_;
    std::atomic<std::uint64_t> bytes_in_{0};
    std::shared_ptr<Traffic> traffic_;
    std::uint64_t copied_before_ = 0;  // under earlier hooks
};

}  // namespace libddp
