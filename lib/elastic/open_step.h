// A step between its begin and its commit, or all steps of an accumulation window (job.h). OpenStep
// knows whether the program may have changed the state meanwhile, and undoes that.
//
// The program may change the state as soon as it has a mean gradient. If it calls nothing between
// that and the commit that can fail for another rank, a step that fails has changed nothing. If it
// does, a call may fail after all of the step was applied, or a part of it, and only the program
// could tell. The one way back is a copy of the state from the begin of the step. It costs memory
// and time, so only a program that needs it has it: its first steps show whether it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "core/context.h"
#include "elastic/parts.h"
#include "elastic/state.h"

namespace libddp {

class OpenStep {
public:
    // `parts` stays while this object lives.
    explicit OpenStep(const JobParts& parts) : parts_(parts) {}

    // A step begins, and with the first of a window what undo() takes back. Copies what the way
    // back needs.
    void begin(Group& group);
    // Whether there is a step that commit() is for.
    bool begun() const { return begun_; }
    // How many steps were committed in the window that is open.
    std::int64_t window_steps() const { return window_steps_; }
    // Whether the state may be another than at the begin.
    bool in_doubt(Group& group) const;
    // The program has applied the step. number: for messages.
    void commit(Group& group, std::int64_t number);
    // It is as if the step, and those before it in the window, had not begun, but for hooks. False:
    // the state may be another, and there is no copy.
    bool undo(Group& group);
    // Hooks do not count the step that was undone. When nothing of it is under way any more.
    void take_hooks_back() const;

    // Whether steps begin with a copy of the state because the program needs it on some rank.
    bool needs_copies() const { return needs_copies_; }
    void need_copies() { needs_copies_ = true; }

private:
    struct Marks {
        std::int64_t steps = 0, results = 0, hook_steps = 0;
    };

    static Marks marks_of(const Context& context);
    std::int64_t results_since_begin(std::size_t context) const;
    bool uses_contexts() const;
    bool has_results() const;
    bool is_plain(Group& group) const;

    const JobParts& parts_;
    bool begun_ = false, open_ = false, copied_ = false, undone_ = false;
    // The first steps of a process begin with a copy, and all of a program that needs it.
    bool has_committed_ = false, needs_copies_ = false;
    std::int64_t window_steps_ = 0;
    StateCopy state_, buffers_;
    std::vector<Marks> marks_;  // of each context at the begin
    // The group's operations at the begin, and how many of them were to succeed.
    std::int64_t operations_ = 0, successes_ = 0;
    std::int64_t averager_steps_ = 0;  // at the begin
};

}  // namespace libddp
