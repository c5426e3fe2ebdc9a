#include "comm/signature.h"

#include "device/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

const char* kind_name(std::int32_t kind) {
    switch (kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return "allreduce";
        case DDP_COLLECTIVE_BROADCAST:
            return "broadcast";
        case DDP_COLLECTIVE_ALLGATHER:
            return "allgather";
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return "reduce_scatter";
        case DDP_COLLECTIVE_BARRIER:
            return "barrier";
        default:
            return "unknown collective";
    }
}

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

const char* hint(const Signature& a, const Signature& b) {
    if (a.step != b.step && a.step >= 0 && b.step >= 0)
        return "the ranks are at different steps: one of them ran ddp_finalize more often";
    if (a.plan != b.plan)
        return "the ranks have different bucket plans, communication hooks, or frozen or skipped parameters";
    if (a.kind != b.kind || a.bucket != b.bucket) return "the ranks call collectives in a different order";
    if (a.device != b.device)
        return "the memory is that of the CPU on one of the ranks, and that of a device on the other";
    return "the ranks give different sizes, types or operations";
}

}  // namespace

std::string describe(const Signature& s) {
    std::string text = kind_name(s.kind);
    if (s.kind != DDP_COLLECTIVE_BARRIER) text += str(" of ", s.count, " ", dtype_name(s.dtype));
    if (s.kind == DDP_COLLECTIVE_ALLREDUCE || s.kind == DDP_COLLECTIVE_REDUCE_SCATTER)
        text += str(" (", op_name(s.op), ")");
    if (s.kind == DDP_COLLECTIVE_BROADCAST) text += str(" from rank ", s.root);
    if (s.bucket >= 0) text += str(", bucket ", s.bucket);
    if (s.step >= 0) text += str(s.bucket >= 0 ? " of step " : ", step ", s.step);
    return text;
}

std::string describe_mismatch(const Signature& mine, std::int32_t my_rank, const Signature& theirs,
                              std::int32_t their_rank, std::string_view label) {
    // The lower rank first, so that both sides say the same.
    const bool me_first = my_rank < their_rank;
    const Signature& first = me_first ? mine : theirs;
    const Signature& second = me_first ? theirs : mine;
    return str("ranks disagree: rank ", me_first ? my_rank : their_rank, " is at ", describe(first), "; rank ",
               me_first ? their_rank : my_rank, " is at ", describe(second), label.empty() ? "" : " (", label,
               label.empty() ? "" : ")", "; ", hint(first, second));
}

}  // namespace libddp
