#include "comm/other_groups.h"

#include <set>

#include "util/mutex.h"
#include "util/process.h"

namespace libddp {
namespace {

struct AllGroups {
    Mutex mutex;
    std::set<OneOfGroups*> all DDP_GUARDED_BY(mutex);
};

// Groups of static objects may be freed after everything else.
AllGroups& all_groups() {
    static OnePerProcess<AllGroups>& one = *new OnePerProcess<AllGroups>;
    return one.get();
}

// Which of several ranks in this process another group belongs to is not known.
bool several_ranks(const AllGroups& g, const OneOfGroups& group) DDP_REQUIRES(g.mutex) {
    for (const OneOfGroups* other : g.all)
        if (other != &group && other->group_keys() == group.group_keys()) return true;
    return false;
}

}  // namespace

AmongGroups::AmongGroups(OneOfGroups& group) : group_(group) {
    AllGroups& g = all_groups();
    const Lock lock(g.mutex);
    g.all.insert(&group_);
}

AmongGroups::~AmongGroups() {
    AllGroups& g = all_groups();
    const Lock lock(g.mutex);
    g.all.erase(&group_);
}

std::string AmongGroups::under_way_elsewhere() const {
    AllGroups& g = all_groups();
    const Lock lock(g.mutex);
    if (several_ranks(g, group_)) return "";
    for (const OneOfGroups* other : g.all) {
        if (other->group_name() == group_.group_name()) continue;
        if (const std::string text = other->under_way(); !text.empty())
            return str(text, " in group '", other->group_name(), "'");
    }
    return "";
}

void AmongGroups::tell_others(const ErrorInfo& verdict) const {
    AllGroups& g = all_groups();
    const Lock lock(g.mutex);
    if (several_ranks(g, group_)) return;
    for (OneOfGroups* other : g.all)
        if (other->group_name() != group_.group_name())
            other->other_broke(
                str(verdict.message, "; that broke group '", group_.group_name(), "'"));
}

}  // namespace libddp
