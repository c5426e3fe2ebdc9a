// A model of which ranks and steps use different parameters, and what its gradients must become.
#pragma once

#include <optional>
#include <set>

#include "equivalence/replica.h"

namespace equivalence {

// Which parameters a rank uses in a step.
using Graph = std::function<std::set<ddp_param>(int rank, int step)>;

// The content of a gradient that nobody touches. It must neither change nor get into a sum.
inline double leftover(ddp_param param, int rank) {
    return 777 + param + 0.25 * rank;
}

inline double branch_gradient(ddp_param param, int rank, int step) {
    return 12.0 * (rank + 1) + 100.0 * param + 1000.0 * step;
}

// The mean over all ranks, where a rank that does not use it counts as zero; nothing if no rank
// uses it.
inline std::optional<double> branch_mean(const Graph& graph, ddp_param param, int step, int world) {
    double sum = 0;
    bool any = false;
    for (int rank = 0; rank < world; ++rank) {
        if (graph(rank, step).count(param) == 0) continue;
        sum += branch_gradient(param, rank, step);
        any = true;
    }
    return any ? std::optional<double>(sum / world) : std::nullopt;
}

class Branches : public Replica<double> {
public:
    // Each parameter has a bucket of its own.
    Branches(ddp_group* group, bool view, std::uint32_t flags, ddp_param count)
        : Replica(group, view, with_flags(flags, small_buckets(1))),
          rank_(ddp_group_rank(group)),
          world_(ddp_group_world_size(group)) {
        for (ddp_param i = 0; i < count; ++i) add(numbered("branch", i), {3});
    }

    // The backward pass: announces what this rank uses, in the given or the other direction.
    void backward(const Graph& graph, int step, bool forwards = false) {
        for (ddp_param i = 0; i < count(); ++i) set(i, leftover(i, rank_));
        const auto used = graph(rank_, step);
        std::vector<ddp_param> order(used.rbegin(), used.rend());
        if (forwards) std::reverse(order.begin(), order.end());
        for (ddp_param i : order) {
            set(i, branch_gradient(i, rank_, step));
            context.grad_ready(i);
        }
    }
    void mark_the_rest_unused(const Graph& graph, int step) {
        std::vector<ddp_param> rest;
        for (ddp_param i = 0; i < count(); ++i)
            if (graph(rank_, step).count(i) == 0) rest.push_back(i);
        context.mark_unused(rest);
    }
    // keep_local: DDP_CONTEXT_KEEP_LOCAL_UNUSED.
    void expect_step(const Graph& graph, int step, bool keep_local = false) {
        const auto own = graph(rank_, step);
        for (ddp_param i = 0; i < count(); ++i) {
            const auto mean = branch_mean(graph, i, step, world_);
            const bool changes = mean && (own.count(i) != 0 || !keep_local);
            expect_near(grad(i), std::vector<double>(3, changes ? *mean : leftover(i, rank_)),
                        numbered("step ", step) + numbered(", branch ", i));
            EXPECT_EQ(context.used(i), mean.has_value()) << "step " << step << ", branch " << i;
        }
    }

private:
    int rank_, world_;
};

}  // namespace equivalence
