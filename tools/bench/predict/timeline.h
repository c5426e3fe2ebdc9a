// Simulates a training step in virtual time: a backward pass, the collectives that it releases, a
// network that these share, and the optimizer and the next forward pass, which wait for them.
#pragma once

#include <ddp/backend.h>

#include <cstdint>
#include <functional>
#include <limits>
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
        // it starts after this gradient, counted in the order of the backward pass; triggers never
        // decrease
        0;
    int after = -1;  // or, if not -1, after this collective, whose result it needs
};

struct Compute {
    double forward_ms = 0, backward_ms = 0, optimizer_ms = 0;
    // for each gradient: the share of the backward pass that has run when it is ready
    std::vector<double> done;
    double jitter = 0;     // standard deviation of a rank's computing time, as a share of it
    double straggler = 0;  // how much longer rank 1 always computes, as a share of its time
};

// Processors that computing and communication share.
struct Processors {
    // cores of each rank, of which computing uses one; 0: they share none
    double of_rank = 0;
    double communication = 0;  // cores that communication keeps busy while nothing else runs
};

// A parameter, in the next forward pass.
struct Layer {
    int bucket = 0;
    double forward = 0;  // its share of the forward pass
    double update = 0;   // its share of the optimizer step
};

// Which of the collectives that are ready a link takes.
enum class Order {
    ready,  // the one that became ready first
    given,  // the next of the list; the link waits for that one
    // the one that the next forward pass needs first; ranks agree on it before each piece
    first_used,
    // the order that first_used has without jitter, given beforehand; the link waits for the next
    // of them
    planned,
};

// How the optimizer and the next forward pass get their gradients.
struct NextPass {
    std::vector<Layer>
        // in the order of the forward pass; each waits for its bucket. Empty: all wait for all
        // buckets
        layers;
    Order order = Order::ready;
    double piece_bytes =
        // collectives are cut into equal pieces of at most so many bytes
        std::numeric_limits<double>::infinity();
    double agreement_ms = 0;  // latency that each piece costs in addition
};

// Milliseconds of an average step.
struct StepTime {
    double step = 0;
    double compute = 0;        // of an average rank
    double waiting = 0;        // of an average rank, for the slowest one
    double exposed = 0;        // how much longer communication makes the step
    double communication = 0;  // time with a collective under way
};

// How many pieces a collective is cut into.
std::size_t piece_count(const Collective& collective, double piece_bytes);

// The same traffic with each bucket's last allreduce as two collectives (DeAR, Zhang et al. 2023):
// a reduce_scatter in its place, and an allgather after all reduce_scatters, in the order in which
// the next forward pass needs the buckets. Play it in the given order.
std::vector<Collective> decoupled(const std::vector<Collective>& collectives,
                                  const std::vector<Layer>& layers, int world);

using CostOf = std::function<Cost(const Collective&)>;

// The time from the beginning of a backward pass to the beginning of the next one, in a long series
// of steps: when a forward pass ends, all gradients that it waited for have arrived, so that every
// step begins with an idle network. collectives: of one step, in the order of submission, which is
// the same on every rank. Returns the mean of so many steps with random jitter, or one step if
// there is no jitter. Throws std::invalid_argument.
StepTime play(const std::vector<Collective>& collectives, const Compute& compute,
              const CostOf& cost_of, int world, const Processors& processors = {}, int steps = 64,
              std::uint64_t seed = 1, const NextPass& next = {});

// The buckets in the order in which Order::first_used starts them, in a step without jitter.
std::vector<int> first_used_order(const std::vector<Collective>& collectives,
                                  const Compute& compute, const CostOf& cost_of, int world,
                                  const Processors& processors, const NextPass& next);

}  // namespace bench
