#include "property/case.h"

#include <ostream>

namespace property {
namespace {

struct Names {
    Mask mask;
};

std::ostream& operator<<(std::ostream& out, Names names) {
    for (int id = 0; id < kMostParams; ++id)
        if (has(names.mask, id)) out << " p" << id;
    return names.mask ? out : out << " nothing";
}

void print_options(std::ostream& out, const Case& c) {
    out << "world " << c.world << ", " << backend_name(c.backend) << ", groups " << c.groups << ", "
        << reduction_name(c.reduction) << ", " << discovery_name(c.discovery);
    const std::pair<std::uint32_t, const char*> flags[] = {
        {DDP_CONTEXT_KEEP_LOCAL_UNUSED, "KEEP_LOCAL_UNUSED"},
        {DDP_CONTEXT_SKIP_UNUSED_BUCKETS, "SKIP_UNUSED_BUCKETS"},
        {DDP_CONTEXT_CONSENSUS_ORDER, "CONSENSUS_ORDER"},
        {DDP_CONTEXT_NO_REBUILD, "NO_REBUILD"},
        {DDP_CONTEXT_SKIP_NONFINITE, "SKIP_NONFINITE"},
        {DDP_CONTEXT_VOTES, "VOTES"}};
    for (const auto& [flag, name] : flags)
        if (c.flags & flag) out << ", " << name;
    if (c.rebuild_interval > 0) out << ", rebuild interval " << c.rebuild_interval;
    if (c.callback) out << ", reduced callback";
    if (c.shard) out << ", shard";
    if (c.in_step) out << ", updates in the step";
    for (int rank = 0; rank < c.world && c.joins; ++rank)
        out << (rank == 0 ? ", steps before ddp_join " : " ")
            << c.inputs[static_cast<std::size_t>(rank)];
    out << "\ncaps: ";
    if (c.caps.empty()) out << c.bucket_cap << ", first " << c.first_bucket_cap;
    for (auto cap : c.caps) out << cap << " ";
    if (c.frozen) out << "\nfrozen before the commit:" << Names{c.frozen};
}

void print_part(std::ostream& out, const Case& c, const Part& part) {
    out << " announces" << Names{part.comes};
    if (part.once) out << ", once only" << Names{part.once};
    if (part.marked) out << ", marks unused" << Names{part.marked};
    if (part.order) out << ", in order " << part.order;
    if (part.async) out << ", finalize_async";
    if (c.weighted()) out << ", weight " << part.weight;
    if (c.votes()) out << ", votes " << part.vote;
}

void print_step(std::ostream& out, const Case& c, const Step& step) {
    out << (step.no_sync ? "no_sync" : "synced");
    if (step.request_rebuild) out << ", request_rebuild";
    if (step.begin) out << ", step_begin";
    if (step.frozen) out << ", frozen" << Names{step.frozen};
    if (step.skipped || step.authority >= 0) out << ", skipped" << Names{step.skipped};
    if (step.authority >= 0) out << " by rank " << step.authority;
    if (step.late) out << " (after step_begin)";
    for (int rank = 0; rank < c.world; ++rank) {
        out << "\n    rank " << rank;
        print_part(out, c, step.parts[static_cast<std::size_t>(rank)]);
    }
}

}  // namespace

int Case::divisor() const {
    return reduction == DDP_REDUCTION_SUM ? 1 : weighted() ? kTotalWeight : world;
}

const char* backend_name(Backend backend) {
    switch (backend) {
        case Backend::kPlain:
            return "threads-plain";
        case Backend::kSingle:
            return "threads-single";
        case Backend::kCaller:
            return "threads-caller";
        case Backend::kShm:
            return "shm";
        case Backend::kStreams:
            return "streams";
        default:
            return "threads";
    }
}

const char* reduction_name(ddp_reduction reduction) {
    const char* names[] = {"mean", "sum", "weighted mean"};
    return names[reduction];
}

const char* discovery_name(Discovery discovery) {
    const char* names[] = {"all used", "FIND_UNUSED", "STATIC_GRAPH"};
    return names[static_cast<int>(discovery)];
}

std::ostream& operator<<(std::ostream& out, const Case& c) {
    print_options(out, c);
    for (int id = 0; id < c.param_count(); ++id) {
        const Param& p = c.params[static_cast<std::size_t>(id)];
        const char* homes[] = {" copy", " view", " in place"};
        out << "\np" << id << ": " << ddp_dtype_name(p.dtype) << "[" << p.count << "]"
            << homes[static_cast<int>(p.home)];
        if (p.delayed) out << " delayed";
        if (p.uses > 1) out << ", " << p.uses << " uses";
        const char* owners[] = {"", ", owned whole", ", replicated"};
        if (c.shard) out << owners[p.owner];
    }
    for (std::size_t i = 0; i < c.steps.size(); ++i) {
        out << "\nstep " << i << ": ";
        print_step(out, c, c.steps[i]);
    }
    return out;
}

}  // namespace property
