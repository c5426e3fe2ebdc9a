// A group: the front of a backend. It queues collectives, checks that ranks agree, and turns failures into one error
// everywhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "comm/bootstrap.h"
#include "comm/executor.h"
#include "comm/monitor.h"
#include "comm/transport.h"
#include "comm/work.h"
#include "ddp/backend.h"
#include "ddp/group.h"

namespace libddp {

// A collective as callers ask for it. send null: in place.
struct Collective {
    ddp_collective_kind kind = DDP_COLLECTIVE_BARRIER;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    ddp_dtype dtype = DDP_U8;
    ddp_reduce_op op = DDP_SUM;
    std::int32_t root = 0;
};

class Group : public std::enable_shared_from_this<Group> {
public:
    static std::shared_ptr<Group> create(const GroupConfig& config);
    std::shared_ptr<Group> split(std::int32_t color, std::int32_t key);
    ~Group();

    std::int32_t rank() const { return place_.rank; }
    std::int32_t world() const { return place_.world; }
    const char* backend_name() const { return transport_->name(); }
    std::int64_t timeout_ms() const { return config_.timeout_ms; }
    std::shared_ptr<Store> store();

    // Queues a collective. Throws INVALID_ARGUMENT or UNSUPPORTED, or what broke the group.
    WorkPtr submit(const Collective& collective);
    // The same, keeping `memory` as long as the operation may use it.
    WorkPtr submit(const Collective& collective, std::shared_ptr<const void> memory);
    // submit and wait; throws what went wrong.
    void run(const Collective& collective);

    // True if the backend applies the division of DDP_AVG itself, for free and without loss in low precision.
    bool fuses_scale() const { return transport_->has(DDP_BACKEND_FUSES_SCALE); }

    Executor& executor() { return *executor_; }
    const std::shared_ptr<Executor>& executor_handle() const { return executor_; }
    // Memory for buckets, zeroed, aligned to 64 bytes; released when the pointer is.
    std::shared_ptr<std::byte> allocate(std::size_t bytes);

    // Breaks the group on every rank. Returns the verdict: an earlier one stands.
    ErrorInfo break_everywhere(const ErrorInfo& error);
    bool broken() const { return broken_.load(std::memory_order_acquire); }
    // Throws the verdict if the group is broken.
    void check() const;
    ErrorInfo verdict() const;

private:
    Group(GroupConfig config, MeetingPlace place) : config_(std::move(config)), place_(std::move(place)) {}

    void join();
    void check_same_options();
    void wait_for_all();
    void on_verdict(const ErrorInfo& verdict);
    void validate(const Collective& collective) const;
    void run_scaled(ddp_collective op);
    ErrorInfo execute(const Collective& collective, std::int64_t sequence, const OpTag& tag) noexcept;

    const GroupConfig config_;
    const MeetingPlace place_;
    std::shared_ptr<Transport> transport_;
    std::unique_ptr<Monitor> monitor_;  // null when alone
    std::shared_ptr<Executor> executor_;
    std::int32_t splits_ = 0;         // how often it was divided
    std::int64_t next_sequence_ = 0;  // touched only by the thread that holds the executor's turn
    std::atomic<bool> broken_{false};
    mutable std::mutex mutex_;
    ErrorInfo verdict_;
    std::shared_ptr<Store> lone_store_;
};

}  // namespace libddp

// The handles of the C ABI. Defined here because built-in hooks use groups and works through them too.
struct ddp_group {
    std::shared_ptr<libddp::Group> impl;
};
struct ddp_work {
    libddp::WorkPtr impl;
};
