// A step between its begin and its commit, or all steps of an accumulation window (job.h). OpenStep knows whether the program may have
// changed the state meanwhile, and undoes that.
//
// The program may change the state as soon as it has a mean gradient. If it calls nothing between that and the commit that can fail for
// another rank, a step that fails has changed nothing. If it does, a call may fail after all of the step was applied, or a part of it,
// and only the program could tell. The one way back is a copy of the state from the begin of the step. It costs memory and time, so
// only a program that needs it has it: its first steps show whether it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "elastic/state.h"

namespace libddp {

class OpenStep {
public:
    struct Parts {
        StateBlocks state;    // what optimizers change
        StateBlocks buffers;  // what forward passes change
        std::vector<Context*> contexts;
    };

    // Begins one, unless it is open already. copies: copies the state, too. Buffers are always copied.
    void begin(const Parts& parts, Group& group, bool copies);
    bool is_open() const { return open_; }
    // Whether the state may be another than at the begin.
    bool in_doubt(const Parts& parts, Group& group) const;
    // Whether any context has given means since the begin.
    bool has_results(const Parts& parts) const;
    // Whether the program has called nothing that another rank can make fail since it had the means.
    bool is_plain(const Parts& parts, Group& group) const;
    // It is as if the step had not begun, but for hooks. False: the state may be another, and there is no copy.
    bool undo(const Parts& parts, Group& group);
    // Hooks do not count the step that was undone. When nothing of it is under way any more.
    void take_hooks_back(const Parts& parts) const;
    // It was applied.
    void commit();

private:
    struct Marks {
        std::int64_t steps = 0, results = 0, hook_steps = 0;
    };

    static Marks marks_of(const Context& context);
    std::int64_t results_since_begin(const Parts& parts, std::size_t context) const;
    bool uses_contexts(const Parts& parts) const;

    bool open_ = false, copied_ = false, undone_ = false;
    StateCopy state_, buffers_;
    std::vector<Marks> marks_;  // of each context at the begin
    // The group's operations at the begin, and how many of them were to succeed.
    std::int64_t operations_ = 0, successes_ = 0;
};

}  // namespace libddp
