#include "comm/round_robin.h"

#include <algorithm>
#include <utility>

#include "util/hash.h"

namespace libddp {
namespace {

using Links = RoundRobin::Links;
using Groups = std::vector<std::shared_ptr<Group>>;

// The claim of a rank about the groups that it gives. It travels as bytes.
struct Claim {
    std::uint64_t groups = 0;  // hash of all of them, in their order
    std::uint64_t count = 0;
};

// Collects the links of the groups. Refuses a group that does not fit the groups before it.
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
            refuse("is rank ", link->rank(), " of ", link->world(), " and groups[0] is rank ",
                   groups[0]->rank(), " of ", groups[0]->world(), "; all must have the same ranks");
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
                    str("ddp_group_round_robin: rank 0 gives ", claims[0].count,
                        " groups and rank ", r, " gives ", claims[r].count,
                        "; every rank must give the same groups in the same order"),
                    rank};
        if (claims[r].groups != claims[0].groups)
            return {DDP_ERROR_MISMATCH,
                    str("ddp_group_round_robin: rank 0 and rank ", r,
                        " give different groups, or the same in another order; every rank must "
                        "give the same groups in the same order"),
                    rank};
    }
    return {};
}

// On all links at once: where ranks give them in another order, each would wait for the other
// otherwise.
void compare(const Links& links, const OpTag& tag) {
    const auto world = static_cast<std::size_t>(links[0]->world());
    const Claim mine = claim_of(links);
    std::vector<std::shared_ptr<std::vector<Claim>>> claims;
    std::vector<WorkPtr> works;
    for (const auto& link : links) {
        auto all = std::make_shared<std::vector<Claim>>(world);
        (*all)[static_cast<std::size_t>(link->rank())] = mine;
        works.push_back(
            link->submit({DDP_COLLECTIVE_ALLGATHER, nullptr, all->data(), sizeof(Claim), DDP_U8},
                         tag.with(Purpose::kRoundRobin).keeping(all)));
        claims.push_back(std::move(all));
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
        works[i]->wait(std::nullopt);
        ErrorInfo error = works[i]->result();
        if (error.ok()) error = find_difference(*claims[i]);
        if (!error.ok()) throw Error(error);
    }
}

std::string names_of(const Links& links) {
    std::vector<std::string> names;
    for (const auto& link : links)
        if (std::find(names.begin(), names.end(), link->backend_name()) == names.end())
            names.emplace_back(link->backend_name());
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

SiblingExecutors::Members executors_of(const Links& links) {
    SiblingExecutors::Members members;
    for (const auto& link : links) members.emplace_back(link->executor());
    return members;
}

}  // namespace

// The links' view of the group. It outlives the group, and lets nobody in any more when the group
// goes: a link's own thread may not be the one that ends a group, as it would wait for itself.
class RoundRobin::Bond final : public Arbiter {
public:
    explicit Bond(RoundRobin& group) : group_(&group) {}

    ErrorInfo decide(const Link& broken, const ErrorInfo& verdict) override {
        const Visit visit(*this);
        return visit.group ? visit.group->decide(broken, verdict) : verdict;
    }

    void end() {
        Lock lock(mutex_);
        group_ = nullptr;
        left_.wait(lock, [this]() DDP_REQUIRES(mutex_) { return visits_ == 0; });
    }

private:
    // Keeps the group while it is used, unless it has ended.
    struct Visit {
        explicit Visit(Bond& to) : bond(to) {
            const Lock lock(bond.mutex_);
            group = bond.group_;
            ++bond.visits_;
        }
        ~Visit() {
            const Lock lock(bond.mutex_);
            --bond.visits_;
            bond.left_.notify_all();
        }
        Visit(const Visit&) = delete;
        Visit& operator=(const Visit&) = delete;

        Bond& bond;
        RoundRobin* group;
    };

    Mutex mutex_;
    Condition left_;
    RoundRobin* group_ DDP_GUARDED_BY(mutex_);
    int visits_ DDP_GUARDED_BY(mutex_) = 0;
};

RoundRobin::RoundRobin(Links links)
    : Group(links.front()->rank(), links.front()->world()),
      links_(std::move(links)),
      backend_name_(names_of(links_)),
      bond_(std::make_shared<Bond>(*this)),
      executors_(std::make_shared<SiblingExecutors>(executors_of(links_))) {
    watch_callbacks(executors_->waiting_callbacks());
}

std::shared_ptr<RoundRobin> RoundRobin::of(Links links) {
    for (const auto& link : links)
        if (link->executor()->runner() == Executor::Runner::kWaitingThread)
            fail(DDP_ERROR_UNSUPPORTED, "group '", link->name(), "': the backend ",
                 link->backend_name(),
                 " may work only on threads of the program here, one group at a time, so its "
                 "groups cannot take turns");
    std::shared_ptr<RoundRobin> group(new RoundRobin(std::move(links)));
    for (const auto& link : group->links_)
        if (!link->set_arbiter(group->bond_))
            fail(DDP_ERROR_INVALID_ARGUMENT, "group '", link->name(),
                 "' is part of a round robin group already");
    // Decides about errors that happened before there was a verdict.
    for (const auto& link : group->links_)
        if (auto verdict = link->verdict(); !verdict.ok())
            throw Error(group->decide(*link, verdict));
    for (const auto& link : group->links_) link->executor()->join(group->executors_);
    return group;
}

RoundRobin::~RoundRobin() {
    for (const auto& link : links_) link->executor()->leave(executors_);
    bond_->end();
}

std::int64_t RoundRobin::timeout_ms() const {
    return links_.front()->timeout_ms();
}

std::shared_ptr<Group> RoundRobin::split(std::int32_t color, std::int32_t key, const OpTag& tag) {
    Links parts;
    for (const auto& link : links_) parts.push_back(link->divide(color, key, tag, parts));
    return color < 0 ? nullptr : of(std::move(parts));
}

WorkPtr RoundRobin::submit(const Collective& collective, OpTag tag) {
    if (Link* here = link_in_order(tag)) return here->submit(collective, std::move(tag));
    if (collective.kind == DDP_COLLECTIVE_BARRIER) return barrier(tag);
    const Lock lock(next_mutex_);
    WorkPtr work = links_[next_]->submit(collective, std::move(tag));
    next_ = (next_ + 1) % links_.size();  // what was refused took no link
    return work;
}

// The link of the running hook or continuation; null outside of one.
Link* RoundRobin::link_in_order(const OpTag& tag) const {
    for (const auto& queue : {tag.order.queue, Queue::in_order(tag)})
        for (const auto& link : links_)
            if (queue && link->executor() == queue) return link.get();
    return nullptr;
}

// Done when it is on every link.
WorkPtr RoundRobin::barrier(const OpTag& tag) {
    std::vector<WorkPtr> works;
    for (const auto& link : links_) works.push_back(link->submit({}, tag));
    WorkPtr all = works.front();
    for (std::size_t i = 1; i < works.size(); ++i)
        all = all->then([work = works[i]](const OpTag&) { return work; }, true, tag);
    return all;
}

// A failure of one link breaks all, on every rank with the same verdict: the one of the first link.
ErrorInfo RoundRobin::decide(const Link& broken, const ErrorInfo& verdict) {
    Link& first = *links_.front();
    if (&broken != &first)
        // All ranks take what the first link agrees on, so an interruption looks there too whether
        // something was faster.
        return verdict.code == DDP_ERROR_INTERRUPTED ? first.break_everywhere(verdict)
                                                     : first.adopt(verdict, broken);
    {
        const Lock lock(verdict_mutex_);
        if (!verdict_.ok()) return verdict_;
        verdict_ = verdict;
        set_broken();  // before anybody else comes back from here with the verdict
    }
    for (const auto& link : links_)
        if (link.get() != &first) link->adopt(verdict, first);
    return verdict;
}

ErrorInfo RoundRobin::verdict() const {
    const Lock lock(verdict_mutex_);
    return verdict_;
}

std::shared_ptr<Group> compose_round_robin(const Groups& groups, const OpTag& tag) {
    if (groups.empty() || groups.size() > RoundRobin::kMostLinks)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "n is ", groups.size(), "; it must be from 1 to ",
                  RoundRobin::kMostLinks);
    Links links = links_of(groups);
    try {
        compare(links, tag);
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
        fail(DDP_ERROR_INVALID_ARGUMENT, "round_robin is ", config.round_robin, "; at most ",
             RoundRobin::kMostLinks, " groups take turns");
    if (config.round_robin <= 1) return Link::create(config);
    Links links;
    for (std::uint32_t i = 0; i < config.round_robin; ++i)
        links.push_back(Link::create(config, links));
    return RoundRobin::of(std::move(links));
}

}  // namespace libddp
