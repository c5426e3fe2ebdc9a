// The newest roster in a store, as anybody wrote it, and who has the state of the job then.
#include <string>

#include "elastic/membership.h"
#include "fuzz/target.h"

DDP_FUZZ_TARGET(rosters, input) {
    using namespace libddp;
    RosterRecord record;
    if (!fuzz::accepts([&] { record = RosterRecord::decode(std::string(input)); })) return;
    const RosterRecord again = RosterRecord::decode(record.encode());
    fuzz::check(again.number == record.number && again.fence == record.fence &&
                    again.members == record.members,
                "a roster changes when it is written and read");
    Roster roster;
    roster.members = record.members;
    roster.newest();
    for (const std::int32_t rank : roster.donors())
        fuzz::check(rank == 0 || static_cast<std::size_t>(rank) < roster.members.size(),
                    "a donor is no member");
}
