#include "elastic/roster_groups.h"

#include <algorithm>
#include <utility>

#include "comm/round_robin.h"
#include "elastic/keys.h"
#include "util/error.h"

namespace libddp {
namespace {

// How long the store has to answer a rank whose connection has ended.
constexpr std::int64_t kStoreMs = 1'000;

GroupConfig with_store(GroupConfig config, std::shared_ptr<Store> store) {
    config.store = std::move(store);
    return config;
}

}  // namespace

RosterGroups::RosterGroups(std::shared_ptr<Store> store, GroupConfig config)
    : config_(with_store(std::move(config), std::move(store))) {}

std::shared_ptr<Group> RosterGroups::alone() const {
    GroupConfig alone = config_;
    alone.rank = 0;
    alone.world = 1;
    alone.name = config_.name + " alone";
    return create_group(alone);
}

GroupConfig RosterGroups::of_roster(const Membership& membership) const {
    GroupConfig config = config_;
    config.prefix = elastic_keys::kJobs + config_.name + "/group/" +
                    std::to_string(membership.roster().number) + "/";
    config.absent = [&membership] { return membership.lost_member(); };
    return config;
}

std::shared_ptr<Group> RosterGroups::join(const Membership& membership) const {
    GroupConfig config = of_roster(membership);
    config.rank = membership.roster().rank;
    config.world = static_cast<std::int32_t>(membership.roster().members.size());
    return create_group(config);
}

std::shared_ptr<Group> RosterGroups::join_part(const Membership& membership,
                                               const std::vector<std::int32_t>& ranks) const {
    if (ranks.size() < 2) return nullptr;
    GroupConfig config = of_roster(membership);
    const auto rank = std::find(ranks.begin(), ranks.end(), membership.roster().rank);
    config.rank = static_cast<std::int32_t>(rank - ranks.begin());
    config.world = static_cast<std::int32_t>(ranks.size());
    config.name += "/neighbours";
    config.prefix += str("neighbours/", ranks.front(), "/");
    return create_group(config);
}

void RosterGroups::explain_loss_of_store(const std::string& reason) const {
    try {
        store()->answers(kStoreMs);
        return;
    } catch (const Error&) {  // what ended it is in `reason`
    }
    try {
        store()->reconnect(kStoreMs);
    } catch (const Error&) {
        fail(DDP_ERROR_UNAVAILABLE, reason,
             "; free the job, and create it again when the store can be reached");
    }
    fail(DDP_ERROR_RANK_FAILED,
         "this rank was cut off from the store, and the others go on without this rank (", reason,
         "); free the job, and create it again to get their state");
}

void call_from(Group& group) {
    if (!group.broken())
        group.break_everywhere(
            {DDP_ERROR_ABORTED,
             str("rank ", group.rank(), " waits in ddp_elastic_begin for a new roster"),
             group.rank()});
}

}  // namespace libddp
