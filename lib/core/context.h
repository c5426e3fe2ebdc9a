// A context: registration, commit, and the steps of a model's training. Semantics: include/ddp/context.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/agreement.h"
#include "core/model.h"
#include "core/reducer.h"
#include "ddp/hook.h"
#include "hooks/plain.h"
#include "util/process.h"

namespace libddp {

// A user's buffer hook and its state, whose deleter is the user's destroy function.
struct BufferHook {
    ddp_buffer_hook_fn fn = nullptr;
    std::shared_ptr<void> user_data;
};

class Context {
public:
    Context(std::shared_ptr<Group> group, ContextOptions options)
        : group_(std::move(group)),
          number_(std::make_unique<ContextNumber>(group_)),
          model_{std::move(options), {}, {}} {}

    std::int32_t register_param(Param param);
    std::vector<std::int32_t> register_params(std::vector<Param> params);
    void register_buffer(Param buffer);
    void commit();

    void step_begin();
    // A rank without inputs takes part until all have none.
    void join();
    void set_sync(bool sync);
    void set_weight(double weight);
    // Throws INVALID_STATE in the middle of a step.
    void require_between_steps() const;
    // Null: the default.
    void set_hook(HookPtr hook);
    // The hook installed now.
    const HookPtr& hook() const;
    const std::string& hook_name() const { return hook_name_; }
    std::vector<std::byte> hook_state() const;
    void load_hook_state(const std::byte* data, std::size_t size, bool shared_only);
    const std::shared_ptr<Group>& group() const { return group_; }
    const ContextNumber& number() const { return *number_; }
    bool skips_nonfinite() const { return model_.options.reducer.nonfinite == Nonfinite::kSkip; }
    void set_reduced_callback(ReducedCallback callback);
    void set_buffer_hook(BufferHook hook) { buffer_hook_ = std::move(hook); }
    void set_frozen(const std::vector<std::int32_t>& params, bool frozen);
    void skip(std::vector<std::int32_t> params, std::int32_t authority);
    void set_group(std::shared_ptr<Group> group);
    std::string plan_text() const;
    void adopt_plan(const std::string& text);
    void abort(const std::string& reason);

    // Runs `body` on the reducer and remembers the error it ends with.
    template <class Body>
    auto step_call(Body&& body) {
        try {
            return body(committed());
        } catch (const Error& error) {
            last_error_.store(error.info().code, std::memory_order_relaxed);
            throw;
        }
    }
    void discard_step();
    Reducer& committed() const;
    // Null before commit.
    Reducer* reducer() const { return committed_.load(std::memory_order_acquire); }

    void* grad_view(std::int32_t param);
    // Whoever has it keeps the memory of today's views.
    std::vector<std::shared_ptr<const void>> hold_layout();
    std::int64_t layout_generation() const {
        const Reducer* reducer = committed_.load(std::memory_order_acquire);
        return reducer ? reducer->layouts() : 0;
    }
    const ParamTable& table() const { return model_.table; }
    const ContextStreams& streams() const { return model_.streams; }
    // The caller's stream for calls that name none.
    void set_stream(const ddp_device& device, void* stream);
    void finalize_enqueue();
    void finalize_on(void* stream);
    std::int32_t rank() const { return group_->rank(); }
    // Ends with the context.
    std::weak_ptr<const void> life() const { return life_; }
    ddp_status last_error() const { return last_error_.load(std::memory_order_relaxed); }

private:
    void building() const;
    void agree_on_ranges(Group& group, const OpTag& of);
    void introduce(ContextNumber& number) const;
    std::int32_t first_frozen() const;
    StepOutcome exchange(bool joined);
    bool has_mean(const StepOutcome& outcome) const;
    void follow(const StepOutcome& outcome);
    void wait_for_devices() const;
    void send_buffers(std::int32_t root);
    void call_buffer_hook();
    double pack_factor(const StepOutcome& outcome) const;

    const std::shared_ptr<const void> life_ = std::make_shared<char>();
    std::shared_ptr<Group> group_;
    std::unique_ptr<ContextNumber> number_;  // on the group
    Model model_;
    BufferHook buffer_hook_;
    double weight_ = 1;

    // Until commit.
    HookPtr hook_ = std::make_shared<AllreduceHook>();
    ReducedCallback reduced_;
    bool sync_ = true;
    std::vector<std::int32_t> frozen_;
    std::optional<std::string> plan_text_;

    std::string hook_name_ = hook_->name();
    std::unique_ptr<Reducer> reducer_;
    std::atomic<Reducer*> committed_{nullptr};  // reducer_, once it may be used
    std::atomic<ddp_status> last_error_{DDP_OK};
    std::int64_t buffers_sent_after_ = 0;  // number of synced steps when buffers were last equal on all ranks
    std::int32_t joined_ = -1;             // the lowest rank that has no inputs in this step; -1: all have
    std::int64_t own_steps_ = 0;           // steps begun with inputs since the last join, in this group
};

}  // namespace libddp

struct ddp_context {
    libddp::Context impl;
    libddp::Origin origin{};
};
