// A context: registration, commit, and the beginning of each step. Semantics:
// include/ddp/context.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/attendance.h"
#include "core/buffers.h"
#include "core/model.h"
#include "core/reducer.h"
#include "core/state_file.h"
#include "hooks/plain.h"
#include "util/process.h"

namespace libddp {

class Context {
public:
    Context(std::shared_ptr<Group> group, ContextOptions options)
        : group_(std::move(group)),
          number_(std::make_unique<ContextNumber>(group_)),
          model_{std::move(options), {}, {}} {}

    // All or none.
    std::vector<std::int32_t> register_params(std::vector<Param> params);
    // The model, to which buffers and facts may be added. Throws after commit.
    Model& building();
    void commit();

    void step_begin();
    // A rank without inputs takes part until all have none.
    void join();
    void discard_step();
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
    ddp_status last_error() const { return last_error_.load(std::memory_order_relaxed); }

    Reducer& committed() const;
    // Null before commit.
    Reducer* reducer() const { return committed_.load(std::memory_order_acquire); }
    // Throws INVALID_STATE in the middle of a step.
    void require_between_steps() const;
    const Model& model() const { return model_; }
    const std::shared_ptr<Group>& group() const { return group_; }
    const ContextNumber& number() const { return *number_; }
    // Ends with the context.
    std::weak_ptr<const void> life() const { return life_; }

    // Null: the default.
    void set_hook(HookPtr hook);
    // The hook installed now.
    const HookPtr& hook() const;
    const std::string& hook_name() const { return hook_name_; }
    void set_reduced_callback(ReducedCallback callback);
    Buffers& buffers() { return buffers_; }
    void set_sync(bool sync);
    Attendance& attendance() { return attendance_; }
    void set_frozen(const std::vector<std::int32_t>& params, bool frozen);
    void adopt_plan(const std::string& text);
    // The caller's stream for calls that name none.
    void set_stream(const ddp_device& device, void* stream);
    void set_group(std::shared_ptr<Group> group);

private:
    // Until commit.
    struct Building {
        HookPtr hook = std::make_shared<AllreduceHook>();
        ReducedCallback reduced;
        bool sync = true;
        std::vector<std::int32_t> frozen;
        std::optional<std::string> plan_text;
    };

    void require_building() const;
    void introduce(ContextNumber& number) const;
    void follow(const StepOutcome& outcome, bool inputs);

    const std::shared_ptr<const void> life_ = std::make_shared<char>();
    std::shared_ptr<Group> group_;
    std::unique_ptr<ContextNumber> number_;  // on the group
    Model model_;
    Building building_;
    std::string hook_name_ = building_.hook->name();
    Attendance attendance_{model_};
    Buffers buffers_{model_};
    std::unique_ptr<Reducer> reducer_;
    std::atomic<Reducer*> committed_{nullptr};  // reducer_, once it may be used
    std::atomic<ddp_status> last_error_{DDP_OK};
};

}  // namespace libddp

struct ddp_context {
    libddp::Context impl;
    libddp::Origin origin{};
    std::vector<libddp::StateArray> arrays{};  // for the next save or load of shards
};
