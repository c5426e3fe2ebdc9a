#include "core/captured_step.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "core/reducer_parts.h"
#include "core/unused.h"
#include "util/error.h"

namespace libddp {
namespace {

bool on_one_device(const Model& model) {
    const auto& params = model.table.params();
    return model.streams.all().size() == 1 &&
           std::none_of(params.begin(), params.end(),
                        [](const Param& p) { return !p.ignored && is_cpu(p.device); });
}

// Null: it enqueues operations into graphs.
const char* backend_without_graphs(Group& group) {
    const auto link = group.link(0);
    const auto& transport = link->devices().transport();
    if (link->world() == 1 || (transport && transport->has(DDP_BACKEND_CAPTURES))) return nullptr;
    return link->backend_name();
}

// In a bucket that travels zeros would stand for it, and a view would have to come back.
const std::string* unused_in_step(const ReducerParts& parts) {
    for (std::int32_t id = 0; id < parts.model.table.size(); ++id) {
        const Role role = parts.participation.role(id);
        const std::int32_t bucket = parts.gradients[id].bucket;
        if (role != Role::kExpected && role != Role::kIgnored && bucket >= 0 &&
            parts.queue.sent(static_cast<std::size_t>(bucket)))
            return &parts.model.table[id].name;
    }
    return nullptr;
}

// Why the host has a part in each step, and what to do about that; empty: it has none.
std::string part_of_host(const ReducerParts& parts) {
    const ReducerOptions& options = parts.model.options.reducer;
    if (!on_one_device(parts.model))
        return "it has gradients on the CPU, or on several devices; give these a context of their "
               "own";
    if (const char* backend = backend_without_graphs(*parts.group))
        return str("the backend '", backend,
                   "' does not put its operations into graphs; take \"nccl\", without "
                   "DDP_GROUP_DETERMINISTIC and algorithm=direct");
    if (parts.group->link_count() > 1)
        return "its group is a round robin of several; take one of them";
    if (options.shard)
        return "with DDP_CONTEXT_SHARD values travel after each step; leave that out";
    if (options.needs_begin)
        return "ranks exchange weights or who has joined in each step; leave out DDP_CONTEXT_JOIN "
               "and DDP_REDUCTION_WEIGHTED_MEAN";
    if (options.find_unused || options.skip_unused)
        return "ranks tell each other in each step which parameters they have used; leave out "
               "DDP_CONTEXT_FIND_UNUSED, or take DDP_CONTEXT_STATIC_GRAPH instead";
    if (options.rebuild_interval > 0)
        return "buckets are built anew again and again (rebuild_interval), and a graph would go on "
               "in the old ones; leave out rebuild_interval";
    if (parts.observers.program)
        return "a function of the program is called with each result; take it away with "
               "ddp_set_reduced_callback";
    if (!parts.model.table.buffers().empty() && parts.model.options.buffer_broadcast)
        return "ddp_step_begin sends buffers in each step; create the context with "
               "DDP_CONTEXT_NO_BUFFER_BROADCAST";
    const auto& observers = parts.observers.all;
    if (std::any_of(observers.begin(), observers.end(),
                    [&](const auto& one) { return one.get() != parts.observers.unused; }))
        return "the host looks at each step; leave out the checks, DDP_CONTEXT_VOTES, "
               "ddp_track_grad_norm, and the options for numbers that are not finite";
    if (!parts.hook.hook()->can_be_captured())
        return str("the hook '", parts.hook.hook()->name(),
                   "' has work on the host in each step; take allreduce, fp16 or bf16");
    return {};
}

std::string not_ready(const ReducerParts& parts) {
    const Step::Begin& begin = parts.step->begin;
    if (!(begin.told ? begin.sync : parts.sync))
        return "it is an unsynced step, which has nothing to put there; capture the step that "
               "syncs";
    if (const std::string* name = unused_in_step(parts))
        return str(
            "'", *name,
            "' is not used in it, and shares a bucket with others that are; let it have one of "
            "its own (ddp_plan_adopt), or freeze it before ddp_commit");
    if (!parts.hook.has_run(parts.step->agreement) || parts.discovering() || parts.planner.due() ||
        parts.planner.recording() || parts.planner.tuning(*parts.group, *parts.hook.hook()))
        return "its buckets or its hook are new, or are not final; run steps outside of a graph "
               "first, two at least after ddp_commit, ddp_use_hook or ddp_set_frozen, and more "
               "until libddp has found the cap of buckets if it looks for one";
    return {};
}

}  // namespace

void require_capturable(const ReducerParts& parts) {
    const std::int64_t step = parts.step->number;
    const auto text = [step](const std::string& why) {
        return str("step ", step, " cannot be part of a graph: ", why);
    };
    if (const std::string why = part_of_host(parts); !why.empty())
        throw CallError({DDP_ERROR_UNSUPPORTED, text(why), -1, -1, -1, step});
    if (const std::string why = not_ready(parts); !why.empty()) parts.refuse_in_step(text(why));
}

void join_graph(ReducerParts& parts, std::uint64_t capture) {
    Step& step = *parts.step;
    std::uint64_t before = step.capture.load(std::memory_order_acquire);
    if (before == capture) return;
    if (before == Step::kAnyCapture) {
        if (capture != 0)
            require_capturable(parts);
        else
            for (const auto& device : parts.model.streams.all()) device->refuse_own_capture();
        if (step.capture.compare_exchange_strong(before, capture, std::memory_order_acq_rel) ||
            before == capture)
            return;
    }
    parts.refuse_in_step(
        before == 0
            ? str("step ", step.number,
                  " has begun outside of the capture of this stream into a graph, which must have "
                  "all of the step; capture from before its first gradient until ddp_finalize_on")
            : str("step ", step.number,
                  " has begun in the capture of a stream into a graph, and this stream is not part "
                  "of that; end the step with ddp_finalize_on in the capture, and name its stream "
                  "to calls that take one, or with ddp_set_stream. If the capture has failed, free "
                  "the context, which breaks the group"));
}

void join_graph_of_callers(ReducerParts& parts) {
    for (const auto& device : parts.model.streams.all())
        join_graph(parts, device->callers_capture());
}

void keep_in_graph(const ReducerParts& parts) {
    std::vector<std::shared_ptr<const void>> memory;
    for (std::size_t b = 0; b < parts.layout->size(); ++b)
        memory.push_back(parts.layout->memory(b));
    parts.model.streams.all().front()->stream()->keep_in_graph(
        std::make_shared<const std::vector<std::shared_ptr<const void>>>(std::move(memory)));
}

void refuse_in_graph(const ReducerParts& parts, const char* call) {
    if (parts.step->captured())
        parts.refuse_in_step(str("step ", parts.step->number,
                                 " is being captured into a graph, where ", call,
                                 " has no place; end the step with ddp_finalize_on in the capture. "
                                 "If the capture has failed, free the context, which breaks the "
                                 "group"));
}

}  // namespace libddp
