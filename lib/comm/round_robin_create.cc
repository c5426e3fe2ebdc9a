// How round robin groups come about.
#include <algorithm>

#include "comm/round_robin.h"
#include "util/hash.h"

namespace libddp {
namespace {

using Links = RoundRobin::Links;
using Groups = std::vector<std::shared_ptr<Group>>;

// What a rank says of the groups that it gives. It travels as bytes.
struct Claim {
    std::uint64_t groups = 0;  // hash of all of them, in their order
    std::uint64_t count = 0;
};

// What is wrong with one group among those before it, if anything.
Links links_of(const Groups& groups) {
    Links links;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const auto refuse = [&](const auto&... what) {
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "groups[", i, "] ", what...);
        };
        const auto link = std::dynamic_pointer_cast<Link>(groups[i]);
        if (!link) refuse("is a round robin group itself; give the groups of which it is made");
        const auto same = std::find(links.begin(), links.end(), link);
        if (same != links.end()) refuse("is the same group as groups[", same - links.begin(), "]");
        if (link->world() != groups[0]->world() || link->rank() != groups[0]->rank())
            refuse("is rank ", link->rank(), " of ", link->world(), " and groups[0] is rank ", groups[0]->rank(),
                   " of ", groups[0]->world(), "; all must have the same ranks");
        if (link->has_arbiter()) refuse("is part of another round robin group");
        links.push_back(link);
    }
    return links;
}

Claim claim_of(const Links& links) {
    Hash hash;
    for (const auto& link : links) hash.add(link->key_prefix());
    return {hash.value(), links.size()};
}

// Every rank computes this from the same claims, so every rank says the same.
ErrorInfo find_difference(const std::vector<Claim>& claims) {
    for (std::size_t r = 1; r < claims.size(); ++r) {
        const auto rank = static_cast<std::int32_t>(r);
        if (claims[r].count != claims[0].count)
            return {DDP_ERROR_MISMATCH,
                    str("ddp_group_round_robin: rank 0 gives ", claims[0].count, " groups and rank ", r, " gives ",
                        claims[r].count, "; every rank must give the same groups in the same order"),
                    rank};
        if (claims[r].groups != claims[0].groups)
            return {DDP_ERROR_MISMATCH,
                    str("ddp_group_round_robin: rank 0 and rank ", r,
                        " give different groups, or the same in another order; every rank must give the same groups in "
                        "the same order"),
                    rank};
    }
    return {};
}

// On all links at once: where ranks give them in another order, each would wait for the other otherwise.
void compare(const Links& links) {
    const auto world = static_cast<std::size_t>(links[0]->world());
    const Claim mine = claim_of(links);
    const ScopedPurpose scope(Purpose::kRoundRobin);
    std::vector<std::shared_ptr<std::vector<Claim>>> claims;
    std::vector<WorkPtr> works;
    for (const auto& link : links) {
        auto all = std::make_shared<std::vector<Claim>>(world);
        (*all)[static_cast<std::size_t>(link->rank())] = mine;
        works.push_back(link->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, all->data(), sizeof(Claim), DDP_U8}, all));
        claims.push_back(std::move(all));
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
        works[i]->wait(std::nullopt);
        ErrorInfo error = works[i]->result();
        if (error.ok()) error = find_difference(*claims[i]);
        if (!error.ok()) throw Error(error);
    }
}

}  // namespace

std::shared_ptr<Group> compose_round_robin(const Groups& groups) {
    if (groups.empty() || groups.size() > RoundRobin::kMostLinks)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "n is ", groups.size(), "; it must be from 1 to ",
                  RoundRobin::kMostLinks);
    Links links = links_of(groups);
    try {
        compare(links);
    } catch (const Error& error) {
        // Nobody may be left waiting for this rank in another of the groups.
        ErrorInfo agreed = error.info();
        for (const auto& link : links) agreed = link->break_everywhere(agreed);
        throw Error(agreed);
    }
    return RoundRobin::of(std::move(links));
}

std::shared_ptr<Group> create_group(const GroupConfig& config) {
    if (config.round_robin > RoundRobin::kMostLinks)
        fail(DDP_ERROR_INVALID_ARGUMENT, "round_robin is ", config.round_robin, "; at most ", RoundRobin::kMostLinks,
             " groups take turns");
    if (config.round_robin <= 1) return Link::create(config);
    Links links;
    for (std::uint32_t i = 0; i < config.round_robin; ++i) links.push_back(Link::create(config, links));
    return RoundRobin::of(std::move(links));
}

}  // namespace libddp
