// Whether a process does anything: it prints, or it or one that descends from it computes. A rank
// may be a shell that waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "loop.h"

namespace ddprun {

class Activity {
public:
    // Looks at the processes, if the last look was some time ago.
    void look(pid_t pid, Clock::time_point now);
    // It has printed something.
    void printed(Clock::time_point now) { last_ = now; }
    // When it was last seen to do something; the first look counts as well.
    Clock::time_point last() const { return last_; }

private:
    Clock::time_point last_{};
    Clock::time_point looked_{};
    std::optional<std::int64_t> cpu_ticks_;
};

}  // namespace ddprun
