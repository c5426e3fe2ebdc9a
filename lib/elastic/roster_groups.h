// The groups of an elastic job: one for each roster, and one of this rank alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/group.h"
#include "elastic/membership.h"

namespace libddp {

class RosterGroups {
public:
    // config: its rank, world, store and prefix are those of each group.
    RosterGroups(std::shared_ptr<Store> store, GroupConfig config);

    const std::shared_ptr<Store>& store() const { return config_.store; }
    const std::string& job() const { return config_.name; }
    std::shared_ptr<Group> alone() const;
    // The group of the membership's roster, which must stay as long as the group. Throws Error.
    std::shared_ptr<Group> join(const Membership& membership) const;
    // A group of some of its ranks, in ascending order and with this one. Null: it is alone. Throws
    // Error.
    std::shared_ptr<Group> join_part(const Membership& membership,
                                     const std::vector<std::int32_t>& ranks) const;
    // A process whose connection to the store has ended counts as dead, even if the store still
    // runs. Returns if it has not ended.
    void explain_loss_of_store(const std::string& reason) const;

private:
    GroupConfig of_roster(const Membership& membership) const;

    const GroupConfig config_;
};

// A rank that has not heard that the members meet waits for this rank in a collective.
void call_from(Group& group);

}  // namespace libddp
