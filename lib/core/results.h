// Gradients leave: a step ends, buckets finish one after another, and results go back to the
// program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/arrivals.h"
#include "core/publisher.h"
#include "core/reducer_parts.h"
#include "ddp/overlap.h"

namespace libddp {

// A user's callback and its state, whose deleter is the user's destroy function.
struct ReducedCallback {
    ddp_reduced_fn fn = nullptr;
    std::shared_ptr<void> user_data;
};

class Results {
public:
    Results(ReducerParts& parts, Arrivals& arrivals) : parts_(parts), arrivals_(arrivals) {}

    void set_callback(ReducedCallback callback) {
        callback_ = std::move(callback);
        parts_.observers.program = callback_.fn != nullptr;
    }
    // Whether functions of the program get means before the step's end.
    bool come_early() const { return callback_.fn || parts_.hook.hook()->gives_results_early(); }

    void finalize();
    // The host does not wait for devices: the callers' streams do.
    void finalize_enqueue();
    // Up to here a step can be told to be wrong without a wait. Afterwards all of its operations
    // are under way.
    void finalize_async();
    void wait_param(std::int32_t param);
    // The host does not wait for devices: this stream of the parameter's does.
    void wait_param_on(std::int32_t param, void* stream);
    void discard();
    // With shards: sends the values that this rank has updated; waits for one.
    void publish();
    // Throws unless the program may update in the step.
    void require_updates() const;
    // how: a hash of what it does alike on all ranks, which they compare; not 0 with a function.
    void set_updates(Updates updates, std::uint64_t how);
    // stream: of the parameter's device, for which the host does not wait.
    void wait_value(std::int32_t param, std::optional<void*> stream);
    // Between steps: an optimizer is about to apply the means of the last synced step. Throws
    // INVALID_STATE unless they are there and nobody did. update: a hash of how, which ranks compare
    // with their next operation.
    void apply_means(std::uint64_t update);
    // A whole step with gradients of zero, for a rank that has no more inputs.
    void shadow();

private:
    void start_draining();
    void drain_until(std::size_t bucket_count);
    void finish_bucket(const ddp_bucket& bucket);
    void clear_results(const ddp_bucket& bucket);
    void drop(const ddp_bucket& bucket);
    void clear(const ddp_bucket& bucket, const ParamState& s, std::int32_t param);
    bool waits_for_answer(std::int32_t param) const;
    void settle(const ddp_bucket& bucket, const BucketTensor& tensor, bool wanted);
    void finish_unused();
    void finish_devices() {
        parts_.gradients.on_devices().finish(*parts_.group, parts_.step->number, enqueue_);
    }
    void wait_until_final(std::int32_t param);
    void report(const ddp_bucket& bucket);
    void call_back(std::int32_t param, bool used);
    void end_local_step();
    void end_synced_step();

    ReducerParts& parts_;
    Arrivals& arrivals_;
    ReducedCallback callback_;
    bool enqueue_ = false;  // callers' streams wait for devices, not the host
};

}  // namespace libddp
