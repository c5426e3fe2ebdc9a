#include "record/operation.h"

#include "ddp/backend.h"

namespace libddp {

const char* collective_name(std::int32_t kind) {
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
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return "all_to_all";
        default:
            return "unknown collective";
    }
}

const char* purpose_name(Purpose purpose) {
    switch (purpose) {
        case Purpose::kProgram:
            return nullptr;
        case Purpose::kSplit:
            return "ddp_group_split";
        case Purpose::kRoundRobin:
            return "ddp_group_round_robin";
        case Purpose::kModel:
            return "the comparison of models (ddp_commit, ddp_context_set_group)";
        case Purpose::kPlan:
            return "the comparison of bucket plans (ddp_commit, ddp_step_begin)";
        case Purpose::kState:
            return "sending parameters or buffers (ddp_commit, ddp_step_begin, ddp_join)";
        case Purpose::kStepBegin:
            return "the beginning of a step (ddp_step_begin, ddp_join)";
        case Purpose::kReadyOrder:
            return "rebuilding the buckets (ddp_step_begin)";
        case Purpose::kSkip:
            return "ddp_skip_params";
        case Purpose::kSetGroup:
            return "ddp_context_set_group";
        case Purpose::kUsedMap:
            return "finding out which parameters were used (ddp_finalize)";
        case Purpose::kDiscard:
            return "ddp_step_discard";
        case Purpose::kAverage:
            return "the averaging of parameters";
        case Purpose::kValues:
            return "comparing the values of parameters (DDP_CONTEXT_CHECK, verify_interval)";
        case Purpose::kEndOfCheck:
            return "the end of a step with DDP_CONTEXT_CHECK";
        case Purpose::kNumbers:
            return "agreeing whether a step is skipped (DDP_CONTEXT_SKIP_NONFINITE)";
        case Purpose::kGraph:
            return "the capture of a step into a graph";
        case Purpose::kPublish:
            return "ddp_publish";
        case Purpose::kNorm:
            return "adding up norms (ddp_track_grad_norm)";
        case Purpose::kUpdate:
            return "the norms of parameters (ddp_optimizer_step)";
        case Purpose::kShardState:
            return "saving or loading shards (ddp_shard_save, ddp_shard_load)";
        case Purpose::kKeptShards:
            return "keeping or recalling shards (ddp_elastic_keep_shards, "
                   "ddp_elastic_recall_shards)";
        case Purpose::kVotes:
            return "the votes of a step (DDP_CONTEXT_VOTES)";
        case Purpose::kShares:
            return "sharing the global batch (ddp_share_batch)";
    }
    return "an unknown purpose";
}

}  // namespace libddp
