// Links of the same ranks as one group. Each collective takes the next link, so that several run at
// once (Li et al. 2020, section 5.4).
//
// Operations that must stay in order stay on one link: a continuation's collectives run on the link
// of the work that they continue. Which link is next depends only on the calls so far, and these
// are the same on every rank.
#pragma once

#include <string>
#include <vector>

#include "comm/executor.h"
#include "comm/link.h"
#include "util/mutex.h"

namespace libddp {

class RoundRobin final : public Group {
public:
    static constexpr std::size_t kMostLinks = 64;
    using Links = Link::Links;

    // Makes a group of links. Every rank has the same ones, in the same order. Throws if one is
    // part of another such group.
    static std::shared_ptr<RoundRobin> of(Links links);
    ~RoundRobin() override;

    const char* backend_name() const override { return backend_name_.c_str(); }
    std::shared_ptr<Store> store() override { return links_.front()->store(); }
    std::int64_t timeout_ms() const override;
    bool reduces_at_once() const override { return links_.front()->reduces_at_once(); }
    bool shares_memory() const override { return links_.front()->shares_memory(); }
    std::shared_ptr<Group> split(std::int32_t color, std::int32_t key, const OpTag& tag) override;
    std::size_t link_count() const override { return links_.size(); }
    std::shared_ptr<Link> link(std::size_t number) override {
        return links_[number % links_.size()];
    }
    WorkPtr submit(const Collective& collective, OpTag tag) override;
    void run(const Collective& collective, const OpTag& tag) override {
        links_.front()->run(collective, tag);
    }
    void perform(const Collective& collective, const OpTag& tag) override {
        submit_and_wait(collective, tag);
    }
    ErrorInfo break_everywhere(const ErrorInfo& error) override {
        return links_.front()->break_everywhere(error);
    }
    ErrorInfo verdict() const override;

private:
    class Bond;

    void run_waiting_callbacks() override { executors_->run_callbacks(); }
    explicit RoundRobin(Links links);
    Link* link_in_order(const OpTag& tag) const;
    WorkPtr barrier(const OpTag& tag);
    ErrorInfo decide(const Link& broken, const ErrorInfo& verdict);

    const Links links_;
    const std::string backend_name_;
    const std::shared_ptr<Bond> bond_;
    const std::shared_ptr<SiblingExecutors> executors_;
    Mutex next_mutex_;
    std::size_t next_ DDP_GUARDED_BY(next_mutex_) = 0;  // the link for the next collective
    mutable Mutex verdict_mutex_;
    ErrorInfo verdict_ DDP_GUARDED_BY(verdict_mutex_);
};

// A round robin group of existing groups. Collective: compares with the other ranks. tag: what the
// comparison belongs to.
std::shared_ptr<Group> compose_round_robin(const std::vector<std::shared_ptr<Group>>& groups,
                                           const OpTag& tag);

// A link, or as many as config.round_robin says.
std::shared_ptr<Group> create_group(const GroupConfig& config);

}  // namespace libddp
