// A context: registration, commit, and the steps of a model's training. Semantics: include/ddp/context.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/group.h"
#include "core/launcher.h"
#include "core/param_table.h"
#include "core/reducer.h"

namespace libddp {

struct ContextOptions {
    ReducerOptions reducer;
    bool initial_broadcast = true;
    bool buffer_broadcast = true;
};

class Context {
public:
    Context(std::shared_ptr<Group> group, ContextOptions options) : group_(std::move(group)), options_(options) {}

    std::int32_t register_param(Param param);
    void register_buffer(Param buffer);
    void commit();

    void step_begin();
    void set_sync(bool sync);
    // Throws INVALID_STATE naming `call` in the middle of a step.
    void require_between_steps(const char* call) const;
    void set_hook(CommHook hook);
    void grad_ready(std::int32_t param) { committed("ddp_grad_ready").grad_ready(param); }
    void finalize() { committed("ddp_finalize").finalize(); }
    void abort(const std::string& reason);

    void* grad_view(std::int32_t param);
    std::int64_t layout_generation() const { return generation_.load(std::memory_order_acquire); }
    const ParamTable& table() const { return table_; }
    std::int32_t bucket_count() const;
    std::int32_t bucket_of(std::int32_t param) const;

private:
    Reducer& committed(const char* call) const;
    void building(const char* call) const;
    void broadcast_buffers();

    const std::shared_ptr<Group> group_;
    const ContextOptions options_;
    ParamTable table_;
    CommHook hook_ = default_hook();  // until commit
    bool sync_ = true;                // until commit
    std::unique_ptr<Reducer> reducer_;
    std::atomic<Reducer*> committed_{nullptr};  // reducer_, once it may be used
    std::atomic<std::int64_t> generation_{0};
    std::int64_t buffers_sent_after_ = 0;  // number of synced steps when buffers were last equal on all ranks
};

}  // namespace libddp

struct ddp_context {
    libddp::Context impl;
};
