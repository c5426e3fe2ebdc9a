// A group over one transport, with one queue: the front of a backend. It queues collectives, checks
// that ranks agree, and turns failures into one error everywhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/executor.h"
#include "comm/group.h"
#include "comm/link_contexts.h"
#include "comm/link_devices.h"
#include "comm/monitor.h"
#include "comm/transport.h"
#include "comm/verdict.h"
#include "record/recorder.h"
#include "util/mutex.h"

namespace libddp {

// Decides what the links of a group that is made of several take for their verdict.
class Arbiter {
public:
    virtual ~Arbiter() = default;
    virtual ErrorInfo decide(const Link& broken, const ErrorInfo& verdict) = 0;
};

inline ErrorInfo interruption(std::int32_t rank, const WaitTarget& waited_for) {
    return interruption(rank, describe(waited_for), waited_for.bucket, waited_for.step);
}

// The signal that this process sends itself when a group breaks for its own rank; 0: none.
void set_blame_signal(int signal);

class Link final : public Group {
public:
    using Links = std::vector<std::shared_ptr<Link>>;

    // earlier: links of the same ranks that were created just before, in this order, and that will
    // be one group with this one. A failure of one of them ends the join of this one.
    static std::shared_ptr<Link> create(const GroupConfig& config, const Links& earlier = {});
    ~Link() override;

    const char* backend_name() const override {
        return (devices_->transport() ? devices_->transport() : transport_)->name();
    }
    std::shared_ptr<Store> store() override;
    std::int64_t timeout_ms() const override { return config_.timeout_ms; }
    bool reduces_at_once() const override {
        return !devices_->transport() && transport_->has_ready();
    }
    bool shares_memory() const override { return transport_->has_memory(); }
    std::shared_ptr<Group> split(std::int32_t color, std::int32_t key, const OpTag& tag) override {
        return divide(color, key, tag);
    }
    std::size_t link_count() const override { return 1; }
    std::shared_ptr<Link> link(std::size_t) override {
        return std::static_pointer_cast<Link>(shared_from_this());
    }
    WorkPtr submit(const Collective& collective, OpTag tag) override;
    void run(const Collective& collective, const OpTag& tag) override;
    ErrorInfo break_everywhere(const ErrorInfo& error) override;
    ErrorInfo verdict() const override;

    // As split(). earlier: as for create().
    std::shared_ptr<Link> divide(std::int32_t color, std::int32_t key, const OpTag& tag,
                                 const Links& earlier = {});

    const std::string& name() const { return config_.name; }
    // The prefix that distinguishes it from other links of its store. The same on every rank.
    const std::string& key_prefix() const { return place_.prefix; }
    const std::shared_ptr<Executor>& executor() const { return executor_; }
    const record::Recorder& recorder() const { return recorder_; }
    const OperationCounts& counts() const { return *counts_; }
    LinkContexts& contexts() { return contexts_; }
    LinkDevices& devices() { return *devices_; }
    // Memory for buckets, zeroed, aligned to 64 bytes; released when the pointer is. stream: null
    // for memory of the CPU; otherwise on its device, to be used in its order.
    std::shared_ptr<std::byte> allocate(std::size_t bytes, const StreamPtr& stream = nullptr);

    // False if it has one that is alive.
    bool set_arbiter(const std::shared_ptr<Arbiter>& arbiter);
    bool has_arbiter() const;
    // Breaks for what broke another link of the same ranks, on every rank. Returns the verdict.
    ErrorInfo adopt(const ErrorInfo& verdict, const Link& from);

private:
    friend class LinkJoining;
    friend class LinkOperation;

    Link(GroupConfig config, MeetingPlace place)
        : Group(place.rank, place.world),
          config_(std::move(config)),
          place_(std::move(place)),
          counts_(config_.counts ? config_.counts : std::make_shared<OperationCounts>()),
          recorder_(record::Recorder::of_group(rank(), world(), config_.name, place_.prefix,
                                               config_.backend)) {}

    static void destroy(Link* link);
    void run_waiting_callbacks() override { executor_->run_callbacks(); }
    void on_verdict(const ErrorInfo& verdict);

    const GroupConfig config_;
    const MeetingPlace place_;
    const std::shared_ptr<OperationCounts> counts_;
    const record::Recorder recorder_;
    // Set while the link is joined, with mutex_ held: a verdict may come then. So are the executor
    // and the devices.
    std::shared_ptr<Transport> transport_;  // for host memory
    std::unique_ptr<Monitor> monitor_;      // null when alone
    std::shared_ptr<Executor> executor_;
    LinkContexts contexts_;
    std::int32_t splits_ = 0;         // how often it was divided
    std::int64_t next_sequence_ = 0;  // touched only by the thread that holds the executor's turn
    mutable Mutex mutex_;
    ErrorInfo verdict_ DDP_GUARDED_BY(mutex_);
    std::weak_ptr<Arbiter> arbiter_ DDP_GUARDED_BY(mutex_);
    std::shared_ptr<Store> lone_store_ DDP_GUARDED_BY(mutex_);
    std::unique_ptr<LinkDevices> devices_;
};

}  // namespace libddp
