#include "why/process_record.h"

#include <algorithm>
#include <limits>

namespace libddp::record {

const GroupRecord* ProcessRecord::group(std::uint16_t owner) const {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& one) { return one.owner == owner; });
    return found == groups.end() ? nullptr : &*found;
}

const std::string& ProcessRecord::mark(std::int64_t id) const {
    static const std::string unknown = "?";
    const bool sensible = id >= 0 && id <= std::numeric_limits<std::uint32_t>::max();
    const auto found = sensible ? marks.find(static_cast<std::uint32_t>(id)) : marks.end();
    return found == marks.end() ? unknown : found->second;
}

ContextsOfGroup::ContextsOfGroup(const ProcessRecord& process, const GroupRecord& group) {
    for (const ContextRecord& context : process.contexts)
        if (context.group == group.owner) contexts_.emplace(context.owner, &context);
}

const ContextRecord* ContextsOfGroup::find(std::uint16_t owner) const {
    const auto found = contexts_.find(owner);
    return found == contexts_.end() ? nullptr : found->second;
}

}  // namespace libddp::record
