#include "core/context.h"

#include "core/agreement.h"
#include "core/state_broadcast.h"

namespace libddp {

std::int32_t Context::register_param(Param param) {
    building("ddp_register_param");
    return table_.add_param(std::move(param));
}

void Context::register_buffer(Param buffer) {
    building("ddp_register_buffer");
    table_.add_buffer(std::move(buffer));
}

void Context::commit() {
    building("ddp_commit");
    group_->check();
    const auto& r = options_.reducer;
    const std::string header = str("options bucket_cap_bytes ", r.cap, ", first_bucket_cap_bytes ", r.first_cap,
                                   ", reduction ", r.mean ? "mean" : "sum", r.rebuild ? "" : ", no rebuild",
                                   options_.initial_broadcast ? "" : ", no initial broadcast",
                                   options_.buffer_broadcast ? "" : ", no buffer broadcast");
    agree_on_model(*group_, header, table_.lines());
    if (table_.size() == 0) fail(DDP_ERROR_INVALID_STATE, "ddp_commit: no parameter was registered");
    if (options_.initial_broadcast) {
        std::vector<const Param*> entries;
        for (const auto& p : table_.params()) entries.push_back(&p);
        for (const auto& b : table_.buffers()) entries.push_back(&b);
        broadcast_state(*group_, entries);
    }
    reducer_ = std::make_unique<Reducer>(group_, table_, options_.reducer, hook_);
    hook_ = {};
    reducer_->set_sync(sync_);
    generation_ = 1;
    committed_.store(reducer_.get(), std::memory_order_release);
}

void Context::step_begin() {
    Reducer& reducer = committed("ddp_step_begin");
    group_->check();
    reducer.require_idle("ddp_step_begin");
    if (reducer.wants_rebuild() && reducer.rebuild()) generation_.fetch_add(1, std::memory_order_acq_rel);
    if (options_.buffer_broadcast && buffers_sent_after_ < reducer.synced_steps()) broadcast_buffers();
}

void Context::broadcast_buffers() {
    std::vector<const Param*> entries;
    for (const auto& b : table_.buffers()) entries.push_back(&b);
    broadcast_state(*group_, entries);
    buffers_sent_after_ = reducer_->synced_steps();
}

void Context::set_sync(bool sync) {
    if (auto* reducer = committed_.load(std::memory_order_acquire))
        reducer->set_sync(sync);
    else
        sync_ = sync;
}

void Context::require_between_steps(const char* call) const {
    if (auto* reducer = committed_.load(std::memory_order_acquire)) reducer->require_idle(call);
}

void Context::set_hook(CommHook hook) {
    if (!hook.fn) hook = default_hook();
    if (auto* reducer = committed_.load(std::memory_order_acquire))
        reducer->set_hook(std::move(hook));
    else
        hook_ = std::move(hook);
}

void Context::abort(const std::string& reason) {
    group_->break_everywhere(
        {DDP_ERROR_ABORTED,
         str("rank ", group_->rank(), " called ddp_context_abort", reason.empty() ? "" : ": ", reason),
         group_->rank()});
}

void* Context::grad_view(std::int32_t param) {
    Reducer& reducer = committed("ddp_grad_view");
    if (param < 0 || param >= table_.size())
        fail(DDP_ERROR_INVALID_ARGUMENT, "ddp_grad_view: parameter ", param, " does not exist; there are ",
             table_.size());
    return reducer.buckets().slot(param);
}

std::int32_t Context::bucket_count() const {
    auto* reducer = committed_.load(std::memory_order_acquire);
    return reducer ? static_cast<std::int32_t>(reducer->buckets().size()) : -1;
}

std::int32_t Context::bucket_of(std::int32_t param) const {
    auto* reducer = committed_.load(std::memory_order_acquire);
    return reducer && param >= 0 && param < table_.size() ? reducer->buckets().bucket_of(param) : -1;
}

Reducer& Context::committed(const char* call) const {
    auto* reducer = committed_.load(std::memory_order_acquire);
    if (!reducer) fail(DDP_ERROR_INVALID_STATE, call, ": the context is still being built; call ddp_commit first");
    return *reducer;
}

void Context::building(const char* call) const {
    if (committed_.load(std::memory_order_acquire))
        fail(DDP_ERROR_INVALID_STATE, call, ": the context is committed already; its parameters can no longer change");
}

}  // namespace libddp
