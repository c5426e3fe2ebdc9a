#include "failure.h"

#include <signal.h>

namespace ddprun {

Weight weight_of(const Ending& ending) {
    switch (ending.signal) {
        case 0:
            return ending.ok() ? Weight::kNone : Weight::kStatus;
        case SIGABRT:
        case SIGPIPE:
            return Weight::kAbort;
        case SIGKILL:
            return Weight::kKill;
        default:
            return Weight::kSignal;
    }
}

}  // namespace ddprun
