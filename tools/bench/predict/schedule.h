// The collectives of a step, from libddp itself: it plans the buckets, runs a few steps with the
// hook on one rank, and records them. The schedule is that of the last step in the record.
#pragma once

#include <string>
#include <vector>

#include "models.h"
#include "options.h"
#include "predict/timeline.h"

namespace bench {

struct Schedule {
    std::vector<Collective> collectives;  // in the order of submission
    int buckets = 0;
    std::vector<int> bucket_of;  // of each parameter
    std::string plan;            // as ddp_plan_save writes it
};

// The same schedule with its buckets in turn on so many links, as a round robin group sends them.
Schedule in_turn(Schedule schedule, unsigned links);

// The plan with its buckets in this order; those that it lacks come last.
std::string plan_in_order(const std::string& plan, const std::vector<int>& order);

// Takes the memory of the gradients and of the hook, and keeps it for the next call. Sets
// DDP_RECORD and DDP_RECORD_EVENTS in this process. Throws std::runtime_error, and
// std::invalid_argument for a hook whose collectives depend on the number of ranks.
Schedule find_schedule(const Model& model, const Settings& settings);

}  // namespace bench
