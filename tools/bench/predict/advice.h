// ddp-bench predict --advise: a search for settings, one after another, and what it found in words.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "options.h"
#include "predict/timeline.h"

namespace bench {

struct Tried {
    Settings settings;
    StepTime time;
    bool advised = false;
};

struct Advice {
    std::vector<Tried> tried;  // in this order, each once. The first has libddp's defaults
    Settings settings;         // the best of those that change no numbers
    std::string text;
};

// A setting keeps its default unless another value saves 2 % of a step. A hook changes numbers, so
// it must save 10 % more. hosts: of the job. On one host the default bucket cap is that of shm, and
// no hook is tried. step: predicts a step.
Advice advise(int hosts, const std::function<StepTime(const Settings&)>& step);

}  // namespace bench
