"""
    DDP

libddp: data-parallel training for everyone who is not PyTorch.

    using DDP

    group = Group()                                # rank and world size from the launcher: ddprun -n 2 julia train.jl
    Context(group) do ctx
        w = register!(ctx, "w", weights, gradients)     # arrays, used where they lie
        commit!(ctx)                               # every rank starts from rank 0's weights
        for batch in batches
            ...                                    # write this rank's gradient into `gradients`
            grad_ready(ctx, w)
            finalize!(ctx)                         # now it is the mean over all ranks
        end
    end

docs/julia.md has a complete trainer and the reference. Ranks, parameters' indices and buckets count from 0, as in libddp's
messages and in other languages; what indexes an array of Julia's counts from 1.
"""
module DDP

import Libdl

include("LibDDP.jl")
import .LibDDP
using .LibDDP: ddp_error, ddp_store, ddp_group, ddp_work, ddp_context, ddp_layout, ddp_averager, ddp_optimizer, ddp_elastic

# Not exported, because programs have such names themselves: check, plan, pieces, stats, version, device, cuda, pointer_of,
# stream_of, device_count, mark, set_workload,
# set_blame_signal.
export Group, Context, Parameter, Work, Store, Bucket, Gradient, Averager, Elastic, Stats, DDPError
export environment, backend_available
export allreduce!, bcast!, allgather!, reduce_scatter!, all_to_all!, barrier, round_robin, alloc, abort!
export isdone, then, complete!
export register!, register_slices!, register_buffer!, commit!, step_begin!, grad_ready, grad_ready_sparse, grad_ready_factors
export finalize!, finalize_async!, wait_param, discard!, set_sync!, no_sync, grad_view, layout_generation, sparse_gradient
export set_stream!, grad_ready_on, put_on!, get_on!, finalize_on!, finalize_enqueue!, wait_param_on
export mark_unused!, param_used, set_frozen!, skip!, skipped, set_weight!, share_batch!, batch_share, batch_time!, join!
export set_owner!, publish!, wait_value, ShardArray, save_shards, load_shards!
export Optimizer, set_option!, in_step!, optimizer_state, track_grad_norm!, grad_norm, clip_grad_norm!, clip_factor, vote!, votes
export bucket_count, param_bucket, request_rebuild!, adopt_plan!, bucket_sizes, ready_order
export average_parameters!, set_outer!, set_fragments!, go_back!, averager_state, load_averager_state!, set_group!
export set_hook!, use_hook!, compress_hook!, hook_then!, hook_name, hook_state, load_hook_state!
export set_buffer_hook!, set_reduced_callback!, set_buffer!, step!
export DataParallel, mean_gradients, DistributedOptimizer, synchronize!!, DistributedDataContainer
export add_context!, add_averager!, add_state!, set_step!, begin_step!, confirm_member, keep_shards, recall_shards!, announce_leave!, leave!, shard_range
export compare_set!, add!

include("library.jl")
include("words.jl")
include("errors.jl")
include("handles.jl")
include("interrupts.jl")
include("calls.jl")
include("devices.jl")
include("arrays.jl")
include("store.jl")
include("work.jl")
include("group.jl")
include("context.jl")
include("bucket.jl")
include("callbacks.jl")
include("gradients.jl")
include("participation.jl")
include("buckets.jl")
include("shards.jl")
include("norms.jl")
include("votes.jl")
include("hooks.jl")
include("averager.jl")
include("optimizer.jl")
include("elastic.jl")
include("trees.jl")
include("record.jl")

const F16, BF16, F32, F64 = LibDDP.DDP_F16, LibDDP.DDP_BF16, LibDDP.DDP_F32, LibDDP.DDP_F64
const I32, I64, U8 = LibDDP.DDP_I32, LibDDP.DDP_I64, LibDDP.DDP_U8
const C64, C128 = LibDDP.DDP_C64, LibDDP.DDP_C128
const SUM, AVG, PROD, MIN, MAX = LibDDP.DDP_SUM, LibDDP.DDP_AVG, LibDDP.DDP_PROD, LibDDP.DDP_MIN, LibDDP.DDP_MAX

"The version of the loaded library."
version() = VersionNumber(unsafe_string(LibDDP.ddp_version()))

function __init__()
    load_library()
    make_callbacks()
    watch_interrupts()
    atexit(leave_groups)
end

end
