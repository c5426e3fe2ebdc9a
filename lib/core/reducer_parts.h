// The parts of a reducer: what a committed model, its group, its layout and its step are to those
// who work on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/gradients.h"
#include "core/installed_hook.h"
#include "core/launch_queue.h"
#include "core/layout.h"
#include "core/model.h"
#include "core/observer.h"
#include "core/participation.h"
#include "core/planner.h"
#include "core/step.h"
#include "core/step_clock.h"
#include "record/recorder.h"

namespace libddp {

// The means of the last synced step. kNone: there has been none since the context got its group.
enum class Means : std::uint8_t { kNone, kThere, kSkipped, kApplied, kPublished };

// Counts and times of past steps.
struct Totals {
    std::int64_t steps = 0, synced_steps = 0, rebuilds = 0;
    // How often the program has got means: of a whole step, or of a parameter before the step's
    // end.
    std::int64_t results = 0;
    // The operations of the group when it last got any (OperationCounts::given_if_all_ended).
    std::int64_t operations_at_result = -1;
    std::uint64_t sent_bytes = 0;
    Means means = Means::kNone;
    // A hash of what an optimizer did with the last means that it applied; all ranks do the same.
    std::uint64_t update = 0;
    std::uint64_t in_step = 0;  // not 0: updates run in the step; a hash of how
    // In the last synced step.
    std::int32_t unsent_buckets = 0;
    std::vector<std::uint8_t> used{};
    StepClock clock{};
};

struct ReducerParts {
    ReducerParts(std::shared_ptr<Group> group, const ContextNumber& number, const Model& model,
                 HookPtr hook, Observers observers);

    // All parts have the layout that is there. Between steps; the next one begins as before.
    void use_layout();
    // Begins the step, if it has not begun: then the result is kFilling or kFillingLocal. Throws if
    // ranks must exchange before.
    Phase begin_step();
    // Makes the next step, in place of the one that is there. It begins with its first gradient.
    // begin: a copy, since it may be of the step that ends here.
    void next_step(Step::Begin begin = {});
    // Nothing that the step learnt is left.
    void forget_step();
    // The step is forgotten, and the next one may come.
    void end_step();
    // Looks for unused gradients; null if this step knows them.
    Unused* discovering() const;
    void count_result();
    // Throws INVALID_STATE, with the step that the text names: the one that is there.
    [[noreturn]] void refuse_in_step(const std::string& text) const;

    const Model& model;
    std::shared_ptr<Group> group;
    const ContextNumber* number;
    record::Recorder recorder;
    Participation participation;
    Planner planner;
    Gradients gradients;
    InstalledHook hook;
    Observers observers;
    LaunchQueue queue;
    std::unique_ptr<Layout> layout;
    // Outside the step: a gradient that comes too late reads it while one step makes way for the
    // next. kIdle releases the new step to the thread of its first gradient.
    std::atomic<Phase> phase{Phase::kIdle};
    std::optional<Step> step;
    bool sync = true;  // of steps for which ranks do not exchange that
    Totals totals;
};

}  // namespace libddp
