// One step: everything that lives no longer than it does.
//
//     idle --first gradient--> filling --finalize(_async)--> closing --finalize--> draining -->
//     idle
//                              filling and closing (no_sync) --finalize--> idle
//
// A step is made when the one before ends, so the first gradient, on whichever thread, needs no
// lock to begin it. Nothing of a step is reset. A new object takes the place of the old one: Step
// in ReducerParts, Announcement beside each gradient, Launch beside each bucket. So a step
// allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/work.h"
#include "core/participation.h"
#include "core/step_clock.h"
#include "util/error.h"

namespace libddp {

// Closing: no gradient may come any more. Draining: results are on their way back.
enum class Phase : std::uint8_t {
    kIdle,
    kFilling,
    kFillingLocal,
    kClosing,
    kClosingLocal,
    kDraining
};

// A parameter in one step. Any thread.
struct Announcement {
    // Added to `calls` where no announcement may follow any more.
    static constexpr std::int32_t kClosed = 1 << 24;

    std::atomic<std::int32_t> calls{0};
    Role role = Role::kExpected;
};

// A bucket in one step.
struct Launch {
    WorkPtr work;     // null: the hook finished at once
    ErrorInfo error;  // of the hook call itself
    // Times of a bucket that is sent. finished: where there is no work that knows.
    StepClock::Point launched_at, finished_at;
    bool launched = false;
    bool live = false;        // some rank uses it, as far as is known before the step
    bool has_absent = false;  // zeros must stand in for a gradient
    bool voted_out = false;
    std::atomic<bool> used{false};  // this rank has a gradient for it; only for votes
    std::shared_ptr<std::uint8_t> ballot;
};

struct Step {
    // How the step ends: with results; without, on this rank alone, which has no inputs; without,
    // on all ranks.
    enum class End : std::uint8_t { kResults, kShadowed, kDiscarded };
    // The ranks' agreement before the first gradient. factor: multiplies this rank's gradients
    // before the mean, or sum. share: this rank's of the global batch; 0: it is not shared.
    struct Begin {
        bool told = false, sync = true;
        double factor = 1;
        std::int64_t share = 0;
    };

    Step(std::int64_t steps, std::int64_t synced_steps, bool with_ballots, const Begin& agreed)
        : number(steps), synced_number(synced_steps), ballots(with_ballots), begin(agreed) {}

    // No gradient of a device has come yet.
    static constexpr std::uint64_t kAnyCapture = ~std::uint64_t{0};

    const std::int64_t number, synced_number;  // steps before it
    // ranks vote before each bucket whether any of them uses it
    const bool ballots;
    Begin begin;
    // A hash of all else that must be the same on all ranks; compared with each operation.
    std::uint64_t agreement = 0;
    // The capture into a graph of which all streams of the step are part; 0: none are. A gradient
    // joins it before it counts for its bucket.
    std::atomic<std::uint64_t> capture{kAnyCapture};
    // Launching.
    std::atomic<std::uint32_t> requests{0};
    std::size_t next = 0;  // touched only by the launching thread
    // likewise. With votes on several links: done when the hook was called for the last bucket
    WorkPtr last_called;
    // Draining: buckets before this one are finished.
    std::size_t drained = 0;
    End end = End::kResults;
    std::optional<ErrorInfo> skipped;  // why all ranks give no result

    bool captured() const {
        const std::uint64_t of_step = capture.load(std::memory_order_relaxed);
        return of_step != 0 && of_step != kAnyCapture;
    }
    bool discarded() const { return end == End::kDiscarded; }
    bool has_results() const { return end == End::kResults; }
};

// Destroys a part of the step before, and makes that of the next in its place.
template <class Part>
void renew(Part& part) {
    std::destroy_at(&part);
    std::construct_at(&part);
}

}  // namespace libddp
