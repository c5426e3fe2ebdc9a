// A group over one transport, with one queue: the front of a backend. It queues collectives, checks that ranks agree,
// and turns failures into one error everywhere.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/device_path.h"
#include "comm/executor.h"
#include "comm/group.h"
#include "comm/monitor.h"
#include "comm/transport.h"
#include "record/recorder.h"

namespace libddp {

class LinkOperation;

// Decides what the links of a group that is made of several take for their verdict.
class Arbiter {
public:
    virtual ~Arbiter() = default;
    virtual ErrorInfo decide(const Link& broken, const ErrorInfo& verdict) = 0;
};

// The signal that this process sends itself when a group breaks for its own rank; 0: none.
void set_blame_signal(int signal);

class Link final : public Group {
public:
    using Links = std::vector<std::shared_ptr<Link>>;

    // earlier: links of the same ranks that were created just before, in this order, and that will be one group with this
    // one. A failure of one of them ends the join of this one.
    static std::shared_ptr<Link> create(const GroupConfig& config, const Links& earlier = {});
    ~Link() override;

    const char* backend_name() const override { return (on_device_ ? on_device_ : transport_)->name(); }
    std::shared_ptr<Store> store() override;
    std::int64_t timeout_ms() const override { return config_.timeout_ms; }
    bool reduces_at_once() const override { return !on_device_ && transport_->has_ready(); }
    bool shares_memory() const override { return transport_->has_memory(); }
    std::shared_ptr<Group> split(std::int32_t color, std::int32_t key, const OpTag& tag) override {
        return divide(color, key, tag);
    }
    std::size_t link_count() const override { return 1; }
    std::shared_ptr<Link> link(std::size_t) override { return std::static_pointer_cast<Link>(shared_from_this()); }
    WorkPtr submit(const Collective& collective, OpTag tag) override;
    void perform(const Collective& collective, const OpTag& tag) override;
    ErrorInfo break_everywhere(const ErrorInfo& error) override;
    ErrorInfo verdict() const override;

    // As split(). earlier: as for create().
    std::shared_ptr<Link> divide(std::int32_t color, std::int32_t key, const OpTag& tag, const Links& earlier = {});

    const std::string& name() const { return config_.name; }
    // The prefix that distinguishes it from other links of its store. The same on every rank.
    const std::string& key_prefix() const { return place_.prefix; }
    const std::shared_ptr<Executor>& executor() const { return executor_; }
    const record::Recorder& recorder() const { return recorder_; }
    // For ContextNumber. Any thread.
    std::int32_t next_context_number() const;
    void take_context_number(std::int32_t number);
    void forget_context(std::int32_t number);
    void name_params(std::int32_t number, std::vector<std::string> names);
    // Empty: unknown.
    std::string param_name(std::int32_t number, std::int32_t param) const;
    // Memory for buckets, zeroed, aligned to 64 bytes; released when the pointer is.
    std::shared_ptr<std::byte> allocate(std::size_t bytes);
    // On the stream's device, to be used in its order.
    std::shared_ptr<std::byte> allocate(std::size_t bytes, const StreamPtr& stream);

    // Throws what broke the group, or the operations on devices that have ended: streams go on without a result then.
    void check_enqueued();

    // How many operations this link and those that were split from it were given.
    std::int64_t operations() const { return counts_->given.load(std::memory_order_acquire); }
    // The same, if all have ended; else -1.
    std::int64_t operations_if_all_ended() const {
        const std::int64_t ended = counts_->ended.load(std::memory_order_acquire);
        return ended == counts_->given.load(std::memory_order_acquire) ? ended : -1;
    }

    // How many of them have ended without an error, and how many will have when all have ended.
    std::int64_t successes() const {
        return counts_->ended.load(std::memory_order_acquire) - counts_->failed.load(std::memory_order_acquire);
    }
    std::int64_t successes_expected() const { return operations() - counts_->failed.load(std::memory_order_acquire); }

    // False if it has one that is alive.
    bool set_arbiter(const std::shared_ptr<Arbiter>& arbiter);
    bool has_arbiter() const;
    // Breaks for what broke another link of the same ranks, on every rank. Returns the verdict.
    ErrorInfo adopt(const ErrorInfo& verdict, const Link& from);

private:
    friend class LinkOperation;
    void run_waiting_callbacks() override { executor_->run_callbacks(); }

    Link(GroupConfig config, MeetingPlace place)
        : Group(place.rank, place.world),
          config_(std::move(config)),
          place_(std::move(place)),
          counts_(config_.counts ? config_.counts : std::make_shared<OperationCounts>()),
          recorder_(record::Recorder::of_group(rank(), world(), config_.name, place_.prefix, config_.backend)) {}

    static void destroy(Link* link);
    void join(const ddp_backend* backend);
    ErrorInfo join_failed(ErrorInfo error, const Deadline& deadline);
    void check_same_options();
    void wait_for_all(const Deadline& deadline);
    std::vector<std::int32_t> missing_ranks(std::int32_t first, std::int32_t end) const;
    void say_who_is_missing() const;
    ErrorInfo broken_so_far() const;
    Links take_earlier();
    std::string joining() const;
    void on_verdict(const ErrorInfo& verdict);
    void take_verdict(const ErrorInfo& decided);
    void validate(const Collective& collective, const OpTag& tag) const;
    // The program ends a wait: breaks the link everywhere, and returns the verdict.
    ErrorInfo interrupted(const WaitTarget& waited_for);
    ErrorInfo interrupted_joining() const;
    void connect(const ddp_backend* backend);
    void abort_transports();
    void end_enqueued();
    const Transport& transport_for(ddp_device_kind kind) const {
        return kind != DDP_DEVICE_CPU && on_device_ ? *on_device_ : *transport_;
    }
    // For operations on memory of this device. With the turn of the executor.
    DevicePath& path(const ddp_device& device);
    void enqueued_failed(const ErrorInfo& error, const std::string& what);

    const GroupConfig config_;
    const MeetingPlace place_;
    const std::shared_ptr<OperationCounts> counts_;
    const record::Recorder recorder_;
    std::shared_ptr<Transport> transport_;  // for host memory
    std::shared_ptr<Transport> on_device_;  // for device memory, perhaps the same; null: the backend takes none
    std::unique_ptr<Monitor> monitor_;      // null when alone
    std::shared_ptr<Executor> executor_;
    std::int32_t splits_ = 0;         // how often it was divided
    std::int64_t next_sequence_ = 0;  // touched only by the thread that holds the executor's turn
    mutable std::mutex mutex_;
    ErrorInfo verdict_;
    Links earlier_;  // only while this one is joined
    std::int32_t next_context_ = 0;
    std::map<std::int32_t, std::vector<std::string>> param_names_;  // of the contexts that exist
    std::weak_ptr<Arbiter> arbiter_;
    std::shared_ptr<Store> lone_store_;
    // For devices; made when they are needed.
    std::unique_ptr<StreamWatch> watch_;
    std::map<std::pair<ddp_device_kind, std::int32_t>, std::unique_ptr<DevicePath>> paths_;
};

}  // namespace libddp
