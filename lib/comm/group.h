// A group as everything above comm sees it: collectives among ranks, and one verdict when something
// breaks.
//
// A link (link.h) is a group over one transport. Other groups are made of links.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "comm/collective.h"
#include "comm/tag.h"
#include "comm/work.h"
#include "ddp/group.h"
#include "rendezvous/store.h"
#include "util/process.h"

namespace libddp {

class Link;

class Group : public std::enable_shared_from_this<Group> {
public:
    virtual ~Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    std::int32_t rank() const { return rank_; }
    std::int32_t world() const { return world_; }
    virtual const char* backend_name() const = 0;
    virtual std::shared_ptr<Store> store() = 0;
    // How long one operation may take.
    virtual std::int64_t timeout_ms() const = 0;

    // True if a bucket that all ranks have filled is reduced by the thread that filled it.
    virtual bool reduces_at_once() const = 0;
    // True if buckets lie in memory of the backend, where other ranks reach them.
    virtual bool shares_memory() const = 0;

    // Null for a rank of color -1. tag: what the exchange of colors belongs to.
    virtual std::shared_ptr<Group> split(std::int32_t color, std::int32_t key,
                                         const OpTag& tag) = 0;

    // The links of which it is made; a link consists of itself.
    virtual std::size_t link_count() const = 0;
    // Link 0, 1, 2, ...; after the last comes the first again. Work of one link runs in the order
    // of its submission.
    virtual std::shared_ptr<Link> link(std::size_t number) = 0;

    // Queues a collective. Throws INVALID_ARGUMENT or UNSUPPORTED, or what broke the group.
    virtual WorkPtr submit(const Collective& collective, OpTag tag) = 0;
    // Runs a collective on link 0, and waits for it; throws what went wrong.
    virtual void run(const Collective& collective, const OpTag& tag) = 0;
    // The same on the link that submit() would take.
    virtual void perform(const Collective& collective, const OpTag& tag) { run(collective, tag); }

    // Runs continuations that wait for a thread inside a libddp call. Cheap when there are none.
    // Relaxed: the queue itself is under a lock, and a thread that waits looks there.
    void run_callbacks() {
        if (waiting_callbacks_->load(std::memory_order_relaxed) <= 0) return;
        const NoCancellation uncancelled;
        run_waiting_callbacks();
    }

    // Breaks the group on every rank. Returns the verdict: an earlier one stands.
    virtual ErrorInfo break_everywhere(const ErrorInfo& error) = 0;
    virtual ErrorInfo verdict() const = 0;
    bool broken() const { return broken_.load(std::memory_order_acquire); }
    // Throws the verdict if the group is broken.
    void check() const {
        if (broken()) throw Error(verdict());
    }
    // The same, now and then, for a thread that waits for something else than a work; and where the
    // program ends the wait.
    void check_in_wait(const char* waited_for);
    // The same for a call that begins something new with the group: it says that nothing has just
    // happened.
    void require_unbroken() const {
        if (!broken()) return;
        ErrorInfo error = verdict();
        error.message =
            str("the group is broken since an earlier failure and stays so; create a new group. It "
                "broke because: ",
                error.message);
        throw CallError(error);
    }

protected:
    Group(std::int32_t rank, std::int32_t world) : rank_(rank), world_(world) {}

    // From now on verdict() has one. Released with it to broken().
    void set_broken() { broken_.store(true, std::memory_order_release); }
    // Where the number of waiting continuations stands, as long as the group lives. Before anybody
    // else has the group.
    void watch_callbacks(const std::atomic<std::int64_t>& count) { waiting_callbacks_ = &count; }
    virtual void run_waiting_callbacks() = 0;
    void submit_and_wait(const Collective& collective, const OpTag& tag);

private:
    const std::int32_t rank_, world_;
    std::atomic<bool> broken_{false};
    const std::atomic<std::int64_t>* waiting_callbacks_ = nullptr;
};

}  // namespace libddp

// The handles of the C ABI. Defined here because built-in hooks use groups and works through them
// too.
struct ddp_group {
    std::shared_ptr<libddp::Group> impl;
    // The world of the launcher's job, if the program's options made this a group of one rank in a
    // larger one; otherwise 1.
    std::int32_t job_world = 1;
    libddp::Origin origin{};
};
struct ddp_work {
    libddp::WorkPtr impl;
    libddp::Origin origin{};
};
