// Simulates a training step in virtual time: a backward pass, the collectives that it releases, and a network that these share.
#pragma once

#include <ddp/backend.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "predict/network.h"

namespace bench {

// One collective of a step.
struct Collective {
    ddp_collective_kind kind = DDP_COLLECTIVE_ALLREDUCE;
    double bytes = 0;  // the input of each rank
    int bucket = -1;
    int link = 0;  // number of the link, in a round robin group
    int trigger =
        0;  // it starts after this gradient, counted in the order of the backward pass; triggers never decrease
    int after = -1;  // or, if not -1, after this collective, whose result it needs
};

struct Compute {
    double forward_ms = 0, backward_ms = 0, optimizer_ms = 0;
    std::vector<double> done;  // for each gradient: the share of the backward pass that has run when it is ready
    double jitter = 0;         // standard deviation of a rank's computing time, as a share of it
    double straggler = 0;      // how much longer rank 1 always computes, as a share of its time
};

// Processors that the backward pass and communication share.
struct Processors {
    double of_rank = 0;        // cores of each rank, of which the backward pass uses one; 0: they share none
    double communication = 0;  // cores that communication keeps busy while nothing else runs
};

// Milliseconds of an average step.
struct StepTime {
    double step = 0;
    double compute = 0;        // of an average rank
    double waiting = 0;        // of an average rank, for the slowest one
    double exposed = 0;        // how much longer communication makes the step
    double communication = 0;  // time with a collective under way
};

using CostOf = std::function<Cost(const Collective&)>;

// collectives: of one step, in the order of submission, which is the same on every rank. Returns the mean of so many steps with random
// jitter, or one step if there is no jitter. Throws std::invalid_argument.
StepTime play(const std::vector<Collective>& collectives, const Compute& compute, const CostOf& cost_of, int world,
              const Processors& processors = {}, int steps = 64, std::uint64_t seed = 1);

}  // namespace bench
