// A bucket of a device as a hook sees it that takes host memory only: a copy in pinned memory, which goes back when the hook
// is done with it.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/group.h"
#include "hooks/bucket.h"
#include "hooks/hook.h"

namespace libddp {

class HostBucket : public std::enable_shared_from_this<HostBucket> {
public:
    HostBucket() = default;
    ~HostBucket() { release_after(std::move(memory_), copied_); }
    HostBucket(const HostBucket&) = delete;
    HostBucket& operator=(const HostBucket&) = delete;

    // Enqueues the copy to the host. The work, in the group's queue, is done when that is there.
    WorkPtr fetch(Group& group, const ddp_bucket& bucket);
    // Gives the copy to the hook, after fetch(), and enqueues the way back of what it makes of it. `bucket` then holds the
    // result, and stays where it is until the work is done.
    WorkPtr reduce(Hook& hook, ddp_group& group, ddp_bucket& bucket);

private:
    void describe(const ddp_bucket& bucket);
    void give_back(const ddp_bucket& bucket);

    std::shared_ptr<std::byte> memory_;
    std::size_t bytes_ = 0;
    EventPtr copied_;  // the last copy, in either direction
    ddp_bucket bucket_;
};

}  // namespace libddp
