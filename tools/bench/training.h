// Steps of a training loop with AdamW, with and without shards.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradients.h"
#include "handles.h"
#include "models.h"

namespace bench {

class Training {
public:
    enum class Kind {
        kFull,     // every rank updates everything
        kSharded,  // each rank updates its shard, and publishes it
        kInStep,   // the same, bucket by bucket in the step
    };

    // own: where the gradients lie, or nullptr: in their buckets.
    Training(ddp_group* group, ddp_context_options options, const Model& model,
             const std::vector<Gradient>* own, Kind kind);

    using Ready = std::function<void(std::size_t)>;
    // backward: writes gradients and tells of each. Returns milliseconds, from the wait for the
    // values to the update.
    double step(const std::function<void(const std::vector<Gradient>&, const Ready&)>& backward);
    // Throws unless all ranks have the same values, which are numbers. Collective.
    void check(ddp_group* group);

private:
    void wait();

    struct FreeOptimizer {
        void operator()(ddp_optimizer* optimizer) const { ddp_optimizer_free(optimizer); }
    };

    OwnGradients values_;
    SharedGradients gradients_;
    std::unique_ptr<ddp_optimizer, FreeOptimizer> optimizer_;
    Kind kind_;
};

}  // namespace bench
