#include "comm/round_robin.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

namespace libddp {
namespace {

std::string names_of(const RoundRobin::Links& links) {
    std::vector<std::string> names;
    for (const auto& link : links)
        if (std::find(names.begin(), names.end(), link->backend_name()) == names.end())
            names.emplace_back(link->backend_name());
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

Crew::Members executors_of(const RoundRobin::Links& links) {
    Crew::Members members;
    for (const auto& link : links) members.emplace_back(link->executor());
    return members;
}

}  // namespace

// What the links know of the group. It outlives the group, and lets nobody in any more when that goes: a link's own thread
// may not be the one that ends a group, as it would wait for itself.
class RoundRobin::Bond final : public Arbiter {
public:
    explicit Bond(RoundRobin& group) : group_(&group) {}

    ErrorInfo decide(const Link& broken, const ErrorInfo& verdict) override {
        const Visit visit(*this);
        return visit.group ? visit.group->decide(broken, verdict) : verdict;
    }

    void end() {
        std::unique_lock lock(mutex_);
        group_ = nullptr;
        left_.wait(lock, [this] { return visits_ == 0; });
    }

private:
    // Keeps the group while it is used, unless it has ended.
    struct Visit {
        explicit Visit(Bond& to) : bond(to) {
            std::lock_guard lock(bond.mutex_);
            group = bond.group_;
            ++bond.visits_;
        }
        ~Visit() {
            std::lock_guard lock(bond.mutex_);
            --bond.visits_;
            bond.left_.notify_all();
        }
        Visit(const Visit&) = delete;
        Visit& operator=(const Visit&) = delete;

        Bond& bond;
        RoundRobin* group;
    };

    std::mutex mutex_;
    std::condition_variable left_;
    RoundRobin* group_;
    int visits_ = 0;
};

RoundRobin::RoundRobin(Links links)
    : Group(links.front()->rank(), links.front()->world()),
      links_(std::move(links)),
      backend_name_(names_of(links_)),
      bond_(std::make_shared<Bond>(*this)),
      crew_(std::make_shared<Crew>(executors_of(links_))) {
    watch_callbacks(crew_->waiting_callbacks());
}

std::shared_ptr<RoundRobin> RoundRobin::of(Links links) {
    for (const auto& link : links)
        if (link->executor()->runner() == Executor::Runner::kWaitingThread)
            fail(DDP_ERROR_UNSUPPORTED, "group '", link->name(), "': the backend ", link->backend_name(),
                 " may work only on threads of the program here, one group at a time, so its groups cannot take turns");
    std::shared_ptr<RoundRobin> group(new RoundRobin(std::move(links)));
    for (const auto& link : group->links_)
        if (!link->set_arbiter(group->bond_))
            fail(DDP_ERROR_INVALID_ARGUMENT, "group '", link->name(), "' is part of a round robin group already");
    // What broke before nobody has decided about.
    for (const auto& link : group->links_)
        if (auto verdict = link->verdict(); !verdict.ok()) throw Error(group->decide(*link, verdict));
    for (const auto& link : group->links_) link->executor()->join(group->crew_);
    return group;
}

RoundRobin::~RoundRobin() {
    for (const auto& link : links_) link->executor()->leave(crew_);
    bond_->end();
}

bool RoundRobin::fuses_scale(ddp_device_kind kind) const {
    return std::all_of(links_.begin(), links_.end(), [kind](const auto& link) { return link->fuses_scale(kind); });
}

std::int64_t RoundRobin::timeout_ms() const {
    return links_.front()->timeout_ms();
}

std::shared_ptr<Group> RoundRobin::split(std::int32_t color, std::int32_t key) {
    Links parts;
    for (const auto& link : links_) parts.push_back(link->divide(color, key, parts));
    return color < 0 ? nullptr : of(std::move(parts));
}

WorkPtr RoundRobin::submit(const Collective& collective) {
    if (Link* here = link_of_this_thread()) return here->submit(collective);
    if (collective.kind == DDP_COLLECTIVE_BARRIER) return barrier();
    std::lock_guard lock(turn_mutex_);
    WorkPtr work = links_[next_]->submit(collective);
    next_ = (next_ + 1) % links_.size();  // what was refused took no turn
    return work;
}

// That of the hook or continuation that runs, or null.
Link* RoundRobin::link_of_this_thread() const {
    for (const auto& executor : {current_tag().executor, Executor::current()})
        for (const auto& link : links_)
            if (executor && link->executor() == executor) return link.get();
    return nullptr;
}

// Done when it is on every link.
WorkPtr RoundRobin::barrier() {
    std::vector<WorkPtr> works;
    for (const auto& link : links_) works.push_back(link->submit({}));
    WorkPtr all = works.front();
    for (std::size_t i = 1; i < works.size(); ++i) all = all->then([work = works[i]] { return work; }, true);
    return all;
}

// What breaks one link breaks all, on every rank with the same verdict: that of the first link.
ErrorInfo RoundRobin::decide(const Link& broken, const ErrorInfo& verdict) {
    Link& first = *links_.front();
    if (&broken != &first)
        // All ranks take what the first link agrees on, so an interruption looks there too whether something was faster.
        return verdict.code == DDP_ERROR_INTERRUPTED ? first.break_everywhere(verdict) : first.adopt(verdict, broken);
    {
        std::lock_guard lock(verdict_mutex_);
        if (!verdict_.ok()) return verdict_;
        verdict_ = verdict;
        set_broken();  // before anybody else comes back from here with the verdict
    }
    for (const auto& link : links_)
        if (link.get() != &first) link->adopt(verdict, first);
    return verdict;
}

ErrorInfo RoundRobin::verdict() const {
    std::lock_guard lock(verdict_mutex_);
    return verdict_;
}

}  // namespace libddp
