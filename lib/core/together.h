// Ranks that do a part each, and go on together or not at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/group.h"
#include "core/context.h"

namespace libddp {

class Together {
public:
    Together(const Context& context, Purpose purpose)
        : group_(*context.group()), tag_(context.number().tag(purpose)) {}

    bool first() const { return group_.rank() == 0; }
    // Whether no rank goes on after what has failed.
    bool all_know() const { return all_know_; }

    // From one rank to all.
    void share(void* memory, std::size_t bytes, std::int32_t root = 0) {
        if (group_.world() > 1 && bytes > 0)
            group_.run({DDP_COLLECTIVE_BROADCAST, nullptr, memory, bytes, DDP_U8, DDP_SUM, root},
                       tag_);
    }

    // All ranks' values, one rank after another. Every rank has the same number of them.
    template <class Value>
    std::vector<Value> gather(const std::vector<Value>& mine) {
        std::vector<Value> all(mine.size() * static_cast<std::size_t>(group_.world()));
        if (group_.world() == 1 || mine.empty()) return mine;
        group_.run({DDP_COLLECTIVE_ALLGATHER, mine.data(), all.data(), mine.size() * sizeof(Value),
                    DDP_U8},
                   tag_);
        return all;
    }
    // The same, where each rank has another number of them. [rank]
    template <class Value>
    std::vector<std::vector<Value>> gather_lists(std::vector<Value> mine) {
        const auto counts = gather(std::vector<std::uint64_t>{mine.size()});
        const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
        mine.resize(most);
        const std::vector<Value> all = gather(mine);
        std::vector<std::vector<Value>> lists;
        for (std::size_t rank = 0; rank < counts.size(); ++rank) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
            lists.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
        }
        return lists;
    }

    // Throws, on all ranks, the error of the first rank on which `part` threw.
    void run(const std::function<void()>& part);

private:
    // The first to throw may end, and with it the group, while others still hear what failed.
    void let_all_hear();

    Group& group_;
    const OpTag tag_;
    bool all_know_ = false;
};

}  // namespace libddp
