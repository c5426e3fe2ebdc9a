# libddp's messages in Julia's words: they name functions and constants of C. LibDDP knows every such name.

"The message with Julia's names. Environment variables keep theirs."
in_julia(message::String) = replace(replace(message, r"\b(options|desc|group)->(flags: )?(\w+)" => s"\3"), r"\b(ddp|DDP)_\w+" => word)

# Functions of C whose names here are not made of theirs.
const OTHER_WORDS = Dict(
    "ddp_register_param" => "register!", "ddp_set_comm_hook" => "set_hook!", "ddp_broadcast" => "bcast!", "ddp_work_test" => "isdone",
    "ddp_context_create" => "Context", "ddp_group_create" => "Group", "ddp_store_create" => "Store", "ddp_work_create" => "Work",
    "ddp_optimizer_create" => "Optimizer", "ddp_optimizer_set" => "set_option!", "ddp_optimizer_step" => "step!",
    "ddp_optimizer_in_step" => "in_step!", "ddp_elastic_recall_shards" => "recall_shards!",
    "ddp_optimizer_state_count" => "optimizer_state", "ddp_optimizer_state_get" => "optimizer_state",
    "ddp_shard_array" => "ShardArray", "ddp_shard_save" => "save_shards", "ddp_shard_load" => "load_shards!",
    "ddp_averager_create" => "Averager", "ddp_elastic_create" => "Elastic", "ddp_elastic_begin" => "begin_step!",
    "ddp_step_vote_level" => "vote!", "ddp_all_to_allv" => "all_to_all!", "ddp_skip_params" => "skip!", "ddp_mem_alloc" => "alloc", "ddp_plan_save" => "plan", "ddp_plan_adopt" => "adopt_plan!",
    "ddp_hook_state_save" => "hook_state", "ddp_hook_state_load" => "load_hook_state!",
    "ddp_averager_state_save" => "averager_state", "ddp_averager_state_load" => "load_averager_state!",
    "ddp_averager_get_step" => "averager.steps", "ddp_elastic_group" => "job.group", "ddp_environment_get" => "environment",
    "ddp_group_status" => "check", "ddp_group_rank" => "group.rank", "ddp_group_world_size" => "group.world_size",
    "ddp_group_backend" => "group.backend", "ddp_group_store" => "group.store", "ddp_group_options_init_sized" => "Group",
    "ddp_context_options_init_sized" => "Context", "ddp_store_options_init_sized" => "Store",
    "ddp_elastic_options_init_sized" => "Elastic",
    "ddp_layout_hold" => "grad_view", "ddp_mark_begin" => "mark", "ddp_mark_end" => "mark", "ddp_stats_get" => "stats",
    "ddp_stats_bucket_sizes" => "bucket_sizes", "ddp_stats_ready_order" => "ready_order", "ddp_store_port" => "store.port",
    "ddp_store_set" => "store[key] = value", "ddp_store_list_keys" => "keys",
    "ddp_bucket_index" => "bucket.index", "ddp_piece_get" => "pieces", "ddp_piece_count" => "pieces",
    "ddp_bucket_is_last" => "bucket.is_last", "ddp_bucket_step" => "bucket.step", "ddp_bucket_dtype" => "bucket.dtype",
    "ddp_bucket_op" => "bucket.op", "ddp_bucket_stream" => "bucket.stream", "ddp_bucket_device" => "bucket.device",
    "ddp_bucket_buffer" => "bucket.buffer", "ddp_bucket_gradient" => "bucket.gradients",
    "ddp_bucket_param_count" => "bucket.gradients", "ddp_bucket_parameter" => "bucket.gradients",
    "ddp_bucket_set_buffer" => "set_buffer!", "ddp_error_create" => "the exception", "ddp_set_interrupt_check" => "an interrupt",
    "DDP_CONTEXT_NO_BUFFER_BROADCAST" => "broadcast_buffers=false", "DDP_PUT_ADD" => "add=true")

function word(name)
    isdefined(LibDDP, Symbol(name)) || return name
    haskey(OTHER_WORDS, name) && return OTHER_WORDS[name]
    if startswith(name, "ddp_")
        bare = replace(name, r"^ddp_(context|group|store|work|averager|elastic|step|plan)?_?" => "")
        for candidate in (name[5:end], bare), ending in ("!", "")
            isdefined(DDP, Symbol(candidate, ending)) && return candidate * ending
        end
        hook = match(r"^ddp_use_([a-z]+)$", name)
        return hook === nothing ? name[5:end] : "use_hook!(\"$(hook[1])\")"
    end
    flag = match(r"^DDP_(?:CONTEXT|GROUP|PARAM|STORE)_(NO_)?(\w+)$", name)
    flag === nothing || return lowercase(flag[2]) * (flag[1] === nothing ? "=true" : "=false")
    startswith(name, "DDP_DEVICE_") && return name[12:end]
    choice = match(r"^DDP_(REDUCTION_|OUTER_|OWNER_)(\w+)$", name)
    choice === nothing || return (choice[1] == "REDUCTION_" ? "reduction=:" : ":") * lowercase(choice[2])
    return startswith(name, "DDP_ERROR_") || !isdefined(DDP, Symbol(name[5:end])) ? name : "DDP." * name[5:end]
end
