// Ranks compare operations of a device's backend behind them: the operation is enqueued without a
// wait for the other ranks, and a difference breaks the group. Whoever starts such operations keeps
// the comparisons, and waits for them before anybody relies on the results.
#pragma once

#include <utility>
#include <vector>

#include "comm/work.h"
#include "util/mutex.h"

namespace libddp {

class Comparisons {
public:
    void add(WorkPtr comparison) {
        const Lock lock(mutex_);
        added_.push_back(std::move(comparison));
    }
    // The comparisons that were added since the last call.
    std::vector<WorkPtr> take() {
        const Lock lock(mutex_);
        return std::exchange(added_, {});
    }

private:
    Mutex mutex_;
    std::vector<WorkPtr> added_ DDP_GUARDED_BY(mutex_);
};

// Waits until ranks have been compared; throws what they found.
inline void wait_for_comparison(Work& comparison) {
    comparison.wait(std::nullopt);
    if (!comparison.result().ok()) throw Error(comparison.result());
}

}  // namespace libddp
