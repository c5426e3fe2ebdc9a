// The group of an operation that waits in that group's own queue.
#pragma once

#include <memory>

#include "comm/group.h"
#include "util/error.h"

namespace libddp {

// It does not keep the group alive. Otherwise a group that its user has freed would live as long as the queue, and be
// destroyed by whichever thread empties that: the group's own.
class GroupRef {
public:
    GroupRef() = default;
    explicit GroupRef(Group& group) : group_(group.weak_from_this()) {}

    // Throws ABORTED once the group was freed.
    std::shared_ptr<Group> get() const {
        if (auto group = group_.lock()) return group;
        fail(DDP_ERROR_ABORTED, "the group was freed");
    }

private:
    std::weak_ptr<Group> group_;
};

}  // namespace libddp
