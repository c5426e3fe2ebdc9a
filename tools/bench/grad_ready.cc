// ddp-bench grad-ready: what a call of ddp_grad_ready costs the thread of the backward pass.
#include <stdexcept>

#include "benchmarks.h"
#include "gradients.h"
#include "groups.h"
#include "measure.h"
#include "models.h"

namespace bench {
namespace {

ddp_context_options default_options() {
    ddp_context_options options;
    ddp_context_options_init(&options);
    return options;
}

}  // namespace

std::vector<Row> run_grad_ready(ddp_group* group, const Options& options) {
    const Model model = uniform(options.params, options.elements);
    SharedGradients shared(group, default_options(), model, nullptr);
    // Only the calls are timed: those that complete a bucket, and so start its reduction, among
    // them.
    const Iteration loop = [&] {
        shared.begin_step();
        bool failed = false;
        const double start = now_ms();
        for (ddp_param i = options.params; i-- > 0;)
            failed |= ddp_grad_ready(shared.context(), i, nullptr) != DDP_OK;
        const double end = now_ms();
        shared.finalize();
        if (failed) throw std::runtime_error("ddp_grad_ready failed");
        return end - start;
    };
    const auto series = measure(ranks_of(group), {options.iterations(), options.seconds}, {loop});
    Row row = make_row("grad-ready", ddp_group_world_size(group), ddp_group_backend(group),
                       4 * element_count(model), series.front());
    row["params"] = model.size();
    row["buckets"] = ddp_context_bucket_count(shared.context());
    row["ns_per_call"] = 1e6 * median(series.front()) / static_cast<double>(model.size());
    return {row};
}

}  // namespace bench
