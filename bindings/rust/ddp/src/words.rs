//! libddp's messages in the words of Rust: they name functions and constants of C. A function without a name here is one of `ddp-sys`,
//! and keeps its name.

/// Functions of C and the methods that call them.
const WORDS: &[(&str, &str)] = &[
    ("ddp_all_to_all", "Collectives::all_to_all"),
    ("ddp_all_to_allv", "Collectives::all_to_allv"),
    ("ddp_allgather", "Collectives::allgather"),
    ("ddp_allreduce", "Collectives::allreduce"),
    ("ddp_backend_available", "backend_available"),
    ("ddp_barrier", "Collectives::barrier"),
    ("ddp_batch_share", "Context::batch_share"),
    ("ddp_broadcast", "Collectives::broadcast"),
    ("ddp_bucket_buffer", "Bucket::elements"),
    ("ddp_bucket_count", "Bucket::elements"),
    ("ddp_bucket_device", "Bucket::elements"),
    ("ddp_bucket_dtype", "Bucket::dtype"),
    ("ddp_bucket_index", "Bucket::index"),
    ("ddp_bucket_is_last", "Bucket::is_last"),
    ("ddp_bucket_op", "Bucket::op"),
    ("ddp_bucket_step", "Bucket::step"),
    ("ddp_clip_factor", "Context::clip_factor"),
    ("ddp_clip_grad_norm", "Context::clip_grad_norm"),
    ("ddp_commit", "ContextBuilder::commit"),
    ("ddp_compress_hook", "Context::compress_hook"),
    ("ddp_context_abort", "Context::abort"),
    ("ddp_context_create", "ContextBuilder::new"),
    ("ddp_context_options_init_sized", "ContextOptions"),
    ("ddp_context_set_group", "Context::set_group"),
    ("ddp_elastic_add_context", "Elastic::add_context"),
    ("ddp_elastic_add_state", "Elastic::add_state"),
    ("ddp_elastic_announce_leave", "Elastic::announce_leave"),
    ("ddp_elastic_begin", "Elastic::begin"),
    ("ddp_elastic_commit", "Elastic::commit"),
    ("ddp_elastic_confirm_member", "Elastic::confirm_member"),
    ("ddp_elastic_create", "Elastic::new"),
    ("ddp_elastic_group", "Elastic::group"),
    ("ddp_elastic_leave", "Elastic::leave"),
    ("ddp_elastic_options_init_sized", "ElasticOptions"),
    ("ddp_elastic_set_step", "Elastic::set_step"),
    ("ddp_environment_get", "environment"),
    ("ddp_error_create", "the hook's error"),
    ("ddp_finalize", "Step::finish"),
    ("ddp_grad_norm", "Context::grad_norm"),
    ("ddp_grad_ready", "Step::ready"),
    ("ddp_grad_view", "Context::grad"),
    ("ddp_group_abort", "Group::abort"),
    ("ddp_group_backend", "Group::backend"),
    ("ddp_group_create", "Group::with"),
    ("ddp_group_options_init_sized", "GroupOptions"),
    ("ddp_group_rank", "Collectives::rank"),
    ("ddp_group_round_robin", "Group::round_robin"),
    ("ddp_group_split", "Group::split"),
    ("ddp_group_status", "Group::status"),
    ("ddp_group_store", "Group::store"),
    ("ddp_group_world_size", "Collectives::world_size"),
    ("ddp_hook_name", "Context::hook_name"),
    ("ddp_hook_state_load", "Context::load_hook_state"),
    ("ddp_hook_state_save", "Context::hook_state"),
    ("ddp_join", "Context::join"),
    ("ddp_mark_begin", "mark"),
    ("ddp_mark_end", "Mark::drop"),
    ("ddp_mark_unused", "Step::mark_unused"),
    ("ddp_optimizer_create", "Optimizer::new"),
    ("ddp_optimizer_set", "Optimizer::set"),
    ("ddp_optimizer_step", "Optimizer::step"),
    ("ddp_param_desc_init_sized", "ParamOptions"),
    ("ddp_param_used", "Context::param_used"),
    ("ddp_piece_count", "Context::pieces"),
    ("ddp_piece_get", "Context::pieces"),
    ("ddp_plan_adopt", "ContextBuilder::adopt_plan"),
    ("ddp_plan_save", "Context::plan"),
    ("ddp_publish", "Context::publish"),
    ("ddp_put", "Step::put"),
    ("ddp_reduce_scatter", "Collectives::reduce_scatter"),
    ("ddp_register_buffer", "ContextBuilder::register_buffer"),
    ("ddp_register_param", "ContextBuilder::register"),
    ("ddp_set_blame_signal", "set_blame_signal"),
    ("ddp_set_comm_hook", "Context::set_hook"),
    ("ddp_set_frozen", "Context::set_frozen"),
    ("ddp_set_interrupt_check", "set_interrupt_check"),
    ("ddp_set_owner", "ContextBuilder::set_owner"),
    ("ddp_set_sync", "Context::set_sync"),
    ("ddp_set_weight", "Context::set_weight"),
    ("ddp_set_workload", "set_workload"),
    ("ddp_shard_range", "shard_range"),
    ("ddp_share_batch", "ContextBuilder::share_batch"),
    ("ddp_skip_params", "Context::skip_params"),
    ("ddp_skipped", "Context::skipped"),
    ("ddp_stats_get", "Context::stats"),
    ("ddp_step_begin", "Context::step"),
    ("ddp_step_discard", "Context::discard"),
    ("ddp_step_vote", "Context::vote"),
    ("ddp_step_vote_level", "Context::vote_level"),
    ("ddp_step_votes", "Context::votes"),
    ("ddp_store_add", "Store::add"),
    ("ddp_store_check", "Store::check"),
    ("ddp_store_compare_set", "Store::compare_set"),
    ("ddp_store_create", "Store::open"),
    ("ddp_store_delete", "Store::delete"),
    ("ddp_store_get", "Store::get"),
    ("ddp_store_list_keys", "Store::keys"),
    ("ddp_store_options_init_sized", "StoreOptions"),
    ("ddp_store_port", "Store::port"),
    ("ddp_store_set", "Store::set"),
    ("ddp_store_wait", "Store::wait"),
    ("ddp_track_grad_norm", "ContextBuilder::track_grad_norm"),
    ("ddp_use_hook", "Context::use_hook"),
    ("ddp_version", "version"),
    ("ddp_wait_value", "Context::wait_value"),
    ("ddp_work_test", "Work::is_done"),
    ("ddp_work_wait", "Work::wait"),
];

/// Constants of C and the types that have them.
const PREFIXES: &[(&str, &str)] = &[
    ("DDP_CONTEXT_", "ContextFlags::"),
    ("DDP_GROUP_", "GroupFlags::"),
    ("DDP_OWNER_", "Owner::"),
    ("DDP_REDUCTION_", "Reduction::"),
    ("DDP_PARAM_", "ParamOptions::"),
];

fn word(name: &str) -> String {
    if let Ok(at) = WORDS.binary_search_by_key(&name, |(c, _)| c) {
        return WORDS[at].1.to_owned();
    }
    for (prefix, words) in PREFIXES {
        if let Some(rest) = name.strip_prefix(prefix) {
            return match *words {
                "ContextFlags::" | "GroupFlags::" => format!("{words}{rest}"),
                "ParamOptions::" => format!("{words}{}", rest.to_lowercase()),
                _ => format!("{words}{}", rest.split('_').map(capital).collect::<String>()),
            };
        }
    }
    match name {
        "DDP_PUT_ADD" => "Step::put_add".to_owned(),
        "DDP_STORE_INSECURE" => "StoreOptions::insecure".to_owned(),
        "DDP_HOOK_STATE_SHARED_ONLY" => "shared_only".to_owned(),
        other => other.to_owned(),
    }
}

fn capital(part: &str) -> String {
    let (first, rest) = part.split_at(part.len().min(1));
    first.to_owned() + &rest.to_lowercase()
}

/// A message with the names of this crate. Environment variables keep theirs.
pub fn in_rust(message: &str) -> String {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut said = String::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        let end = rest.find(|c| !letters(c)).unwrap_or(rest.len());
        if end == 0 {
            let end = rest.find(letters).unwrap_or(rest.len());
            said.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let (name, after) = rest.split_at(end);
        rest = match after.strip_prefix("->") {
            // "desc->name" is the argument "name"
            Some(field) if ["options", "desc", "group"].contains(&name) => field,
            _ => {
                said.push_str(&word(name));
                after
            }
        };
    }
    said
}
