// The buffers of a model, which one rank's values replace on all ranks, unless a function of the
// program does something else.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/model.h"
#include "ddp/more_hooks.h"

namespace libddp {

// A user's buffer hook and its state, whose deleter is the user's destroy function.
struct BufferHook {
    ddp_buffer_hook_fn fn = nullptr;
    std::shared_ptr<void> user_data;
};

class Buffers {
public:
    explicit Buffers(const Model& model) : model_(model) {}

    void set_hook(BufferHook hook) { hook_ = std::move(hook); }
    // Once after each synced step. Collective. root: whose values count.
    void send(const std::shared_ptr<Group>& group, const ContextNumber& number, std::int32_t root,
              std::int64_t synced_steps);
    // They are equal on all ranks after so many synced steps.
    void set_equal(std::int64_t synced_steps) { equal_after_ = synced_steps; }

private:
    void call_hook(const std::shared_ptr<Group>& group, const ContextNumber& number) const;

    const Model& model_;
    BufferHook hook_;
    std::int64_t equal_after_ = 0;
};

}  // namespace libddp
