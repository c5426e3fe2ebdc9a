// Observers look at steps for somebody who asked for it: unused parameters, bad numbers, checks. An
// observer that nobody asked for does not exist. Where nothing else is said, on the thread that
// ends the step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/layout.h"

namespace libddp {

struct ReducerParts;
class Norms;
class NumberCheck;
class Publisher;
class StepCheck;
class StepVotes;
class Unused;

class Observer {
public:
    virtual ~Observer() = default;

    // There are other buckets, between steps.
    virtual void on_layout(ReducerParts&) {}
    // A step is about to begin, on the thread of its first gradient, or on several that compete for
    // it. No gradient is in its bucket.
    virtual void on_begin(ReducerParts&) {}
    // Every gradient of this rank is accounted for, every bucket is on its way, and no result is
    // there.
    virtual void on_close(ReducerParts&) {}
    // Before any gradient of the step gets a result.
    virtual void before_results(ReducerParts&) {}
    // This bucket has its result, and no gradient has got it. Not in a step without results. Where
    // parameters are updated in the step: on the thread that does that.
    virtual void on_bucket(ReducerParts&, const ddp_bucket&) {}
    // All gradients are final. It may wait for the other ranks.
    virtual void on_end(ReducerParts&) {}
    // The step is over, however it ended.
    virtual void on_forget() {}
};

// The observers that somebody asked for. A pointer to any other is null.
struct Observers {
    std::vector<std::unique_ptr<Observer>> all;
    // Three of them, which a gradient meets on its way into its bucket and out of it. No other hears
    // of each gradient: with thousands of small ones even an empty call costs a percent of a step.
    Unused* unused = nullptr;
    StepCheck* check = nullptr;
    NumberCheck* numbers = nullptr;
    // One that leaves with the last bucket.
    StepVotes* votes = nullptr;
    // One that all others may ask.
    Norms* norms = nullptr;
    // One that sends new values between steps.
    Publisher* publisher = nullptr;
    // A function of the program's is told of each result (ddp_set_reduced_callback).
    bool program = false;
};

}  // namespace libddp
