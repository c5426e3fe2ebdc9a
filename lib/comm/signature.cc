#include "comm/signature.h"

#include <algorithm>
#include <utility>

#include "comm/verdict.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

const char* op_name(std::int32_t op) {
    switch (op) {
        case DDP_SUM:
            return "sum";
        case DDP_AVG:
            return "avg";
        case DDP_PROD:
            return "prod";
        case DDP_MIN:
            return "min";
        case DDP_MAX:
            return "max";
        default:
            return "unknown op";
    }
}

bool is_programs_own(const Signature& s) {
    return s.purpose == Purpose::kProgram && s.step < 0;
}

// An operation that a rank repeats in its training loop.
bool is_of_training(const Signature& s) {
    return s.step >= 0 || s.purpose == Purpose::kPlan || s.purpose == Purpose::kState ||
           s.purpose == Purpose::kStepBegin || s.purpose == Purpose::kReadyOrder;
}

bool is_uneven(const Signature& s) {
    return s.kind == DDP_COLLECTIVE_ALL_TO_ALL && s.parts == kUnevenParts;
}

// A rank and what it is at.
struct Side {
    std::int32_t rank;
    const Signature& at;
};

// ", context 1 (first parameter 'critic.w')".
std::string context_text(std::int32_t context, const ParamName& name_of) {
    const std::string name = name_of(context, 0);
    return str(", context ", context, name.empty() ? "" : str(" (first parameter '", name, "')"));
}

// The step that one rank syncs went by without communication on the other, as both have synced
// equally often.
std::string hint_for_steps(const Side& a, const Side& b) {
    const auto& [early, late] = a.at.step < b.at.step ? std::pair(a, b) : std::pair(b, a);
    if (a.at.synced_steps != b.at.synced_steps || a.at.synced_steps < 0)
        return "the ranks are at different steps: one of them ran ddp_finalize more often";
    return str(
        "rank ", early.rank, " syncs step ", early.at.step, ", and rank ", late.rank,
        " did not sync it (no_sync); every rank must give ddp_set_sync the same value for a step");
}

std::string hint_for_program(const Side& own, const Side& other) {
    std::string text = str("rank ", own.rank, " calls a collective of its own, which rank ",
                           other.rank, " does not call here");
    if (is_of_training(other.at))
        text += str(
            "; or rank ", own.rank,
            " has ended its loop before the others: with uneven inputs create the contexts with "
            "DDP_CONTEXT_JOIN and call ddp_join after the loop");
    return text;
}

// " 'w'", or " 3" where the name is unknown.
std::string frozen_text(const Signature& s, const ParamName& name_of) {
    const std::string name = name_of(s.context, s.frozen);
    return name.empty() ? std::to_string(s.frozen) : str("'", name, "'");
}

std::string hint_for_frozen(const Side& a, const Side& b, const ParamName& name_of) {
    constexpr const char* rule = "; every rank must give ddp_set_frozen the same parameters";
    if (a.at.frozen >= 0 && b.at.frozen >= 0)
        return str("the first frozen parameter is ", frozen_text(a.at, name_of), " on rank ",
                   a.rank, " and ", frozen_text(b.at, name_of), " on rank ", b.rank, rule);
    const auto& [freezes, other] = a.at.frozen >= 0 ? std::pair(a, b) : std::pair(b, a);
    return str("parameter ", frozen_text(freezes.at, name_of), " is frozen on rank ", freezes.rank,
               " and not on rank ", other.rank, rule);
}

std::string hint_for_graph(const Side& captures, const Side& other) {
    return str("rank ", captures.rank, " captures the step into a graph, and rank ", other.rank,
               other.at.step == captures.at.step ? " runs it" : " does not",
               "; every rank must capture the same steps, and launch their graphs in the same "
               "order");
}

std::string hint(const Side& a, const Side& b, const ParamName& name_of) {
    if (is_programs_own(a.at) != is_programs_own(b.at))
        return is_programs_own(a.at) ? hint_for_program(a, b) : hint_for_program(b, a);
    if (a.at.context != b.at.context && a.at.context >= 0 && b.at.context >= 0)
        return "the ranks use the contexts of the group in a different order; every rank must "
               "create, commit, step and finalize them in the same order";
    if (frozen_on_one(a.at, b.at) >= 0) return hint_for_frozen(a, b, name_of);
    if (a.at.step != b.at.step && a.at.step >= 0 && b.at.step >= 0) return hint_for_steps(a, b);
    if (a.at.purpose != b.at.purpose && a.at.purpose == Purpose::kGraph)
        return hint_for_graph(a, b);
    if (a.at.purpose != b.at.purpose && b.at.purpose == Purpose::kGraph)
        return hint_for_graph(b, a);
    if (a.at.purpose != b.at.purpose)
        return "the ranks call functions of libddp in a different order";
    if (a.at.hook != b.at.hook && a.at.purpose == Purpose::kAverage)
        return "the ranks have different fragments, or only some of them have an outer optimizer; "
               "every rank must call ddp_averager_set_outer with the same fragments, sent_dtype, "
               "delay and alpha, and ddp_averager_set_fragments with the same numbers";
    if (a.at.plan != b.at.plan && a.at.purpose == Purpose::kAverage)
        return "the ranks have different outer optimizers, or only some of them loaded its state; "
               "every rank must call ddp_averager_set_outer with the same options, and load the "
               "state";
    if (a.at.hook != b.at.hook)
        return "the ranks have different communication hooks, or give the hook different options";
    if (a.at.plan != b.at.plan)
        return "the ranks freeze or skip different parameters; every rank must give ddp_set_frozen "
               "and ddp_skip_params the same ones; or their optimizers have different settings, "
               "scales or numbers of steps, which ddp_optimizer_set, ddp_optimizer_step and "
               "ddp_optimizer_in_step must get alike; or ddp_set_update has given some ranks a "
               "function, and others none";
    if (a.at.kind != b.at.kind || a.at.bucket != b.at.bucket)
        return "the ranks call collectives in a different order";
    if (a.at.device != b.at.device)
        return "the memory is that of the CPU on one of the ranks, and that of a device on the "
               "other";
    if (a.at.kind == b.at.kind && is_uneven(a.at) != is_uneven(b.at))
        return "one of the ranks gives a count for each rank (ddp_all_to_allv), and the other one "
               "count for all (ddp_all_to_all)";
    if (a.at.parts != b.at.parts && a.at.count == b.at.count)
        return "the ranks divide the message differently: every rank must give the same size of "
               "each rank's part";
    return "the ranks give different sizes, types or operations";
}

}  // namespace

std::string describe(const Signature& s) {
    std::string text = collective_name(s.kind);
    if (is_uneven(s))
        text += str(" of uneven parts of ", dtype_name(s.dtype));
    else if (s.kind != DDP_COLLECTIVE_BARRIER)
        text += str(" of ", s.count, " ", dtype_name(s.dtype));
    if (s.kind == DDP_COLLECTIVE_ALLREDUCE || s.kind == DDP_COLLECTIVE_REDUCE_SCATTER)
        text += str(" (", op_name(s.op), ")");
    if (s.kind == DDP_COLLECTIVE_BROADCAST) text += str(" from rank ", s.root);
    if (s.bucket >= 0) text += str(", bucket ", s.bucket);
    if (s.step >= 0) text += str(s.bucket >= 0 ? " of step " : ", step ", s.step);
    if (const char* name = purpose_name(s.purpose)) text += str(", for ", name);
    if (is_programs_own(s)) text += ", called by the program itself";
    return text;
}

std::string describe(const WaitTarget& p) {
    if (p.bucket >= 0) return str("bucket ", p.bucket, " of step ", p.step);
    const char* kind = p.kind == 0 ? "operation" : collective_name(p.kind);
    return str(std::string_view("aeo").find(*kind) != std::string_view::npos ? "an " : "a ", kind,
               p.step >= 0 ? str(" of step ", p.step) : "");
}

std::string describe_mismatch(const Signature& mine, std::int32_t my_rank, const Signature& theirs,
                              std::int32_t their_rank, std::string_view label,
                              const ParamName& param_name) {
    // The lower rank first, so that both sides say the same.
    const bool me_first = my_rank < their_rank;
    const Side me{my_rank, mine}, other{their_rank, theirs};
    const Side &first = me_first ? me : other, &second = me_first ? other : me;
    const bool differ = mine.context != theirs.context && mine.context >= 0 && theirs.context >= 0;
    const auto side = [&](const Side& s) {
        return str("rank ", s.rank, " is at ", describe(s.at),
                   !differ ? "" : context_text(s.at.context, param_name),
                   s.rank != my_rank || label.empty() ? "" : ", ", s.rank == my_rank ? label : "");
    };
    return str("ranks disagree: ", side(first), "; ", side(second), "; ",
               hint(first, second, param_name));
}

std::int32_t frozen_on_one(const Signature& a, const Signature& b) {
    if (a.context != b.context || a.frozen == b.frozen) return -1;
    return a.frozen < 0 || b.frozen < 0 ? std::max(a.frozen, b.frozen)
                                        : std::min(a.frozen, b.frozen);
}

std::string advice_for(const Signature& signature) {
    return is_of_training(signature) ? kUnevenInputs : "";
}

}  // namespace libddp
