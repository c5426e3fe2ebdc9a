/* layout.c: the layout of every public struct on 64-bit systems, where long and pointers have 64
 * bits (LP64).
 *
 * These numbers are the ABI: programs and bindings are compiled with them. A line may be added when
 * a field is appended or a struct is new; a line that exists never changes within one
 * DDP_ABI_VERSION, except a SIZE that grows with appended fields. complete.py checks that nothing
 * is left out.
 */
#include <stddef.h>

#include "ddp/ddp.h"

#define SIZE(type, bytes) \
    _Static_assert(sizeof(type) == (bytes), "the size of " #type " has changed")
#define FIELD(type, field, at) \
    _Static_assert(offsetof(type, field) == (at), #type "." #field " has moved")

_Static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8, "this table is for LP64");

SIZE(ddp_outer_options, 64);
FIELD(ddp_outer_options, struct_size, 0);
FIELD(ddp_outer_options, kind, 8);
FIELD(ddp_outer_options, reserved0, 12);
FIELD(ddp_outer_options, learning_rate, 16);
FIELD(ddp_outer_options, momentum, 24);
FIELD(ddp_outer_options, inner_learning_rate, 32);
FIELD(ddp_outer_options, fragments, 40);
FIELD(ddp_outer_options, sent_dtype, 44);
FIELD(ddp_outer_options, delay, 48);
FIELD(ddp_outer_options, alpha, 56);

SIZE(ddp_backend_failure, 512);
FIELD(ddp_backend_failure, rank, 0);
FIELD(ddp_backend_failure, message, 4);

SIZE(ddp_backend_host, 104);
FIELD(ddp_backend_host, struct_size, 0);
FIELD(ddp_backend_host, handle, 8);
FIELD(ddp_backend_host, rank, 16);
FIELD(ddp_backend_host, world_size, 20);
FIELD(ddp_backend_host, group_name, 24);
FIELD(ddp_backend_host, options, 32);
FIELD(ddp_backend_host, timeout_ms, 40);
FIELD(ddp_backend_host, flags, 48);
FIELD(ddp_backend_host, reserved0, 52);
FIELD(ddp_backend_host, store_set, 56);
FIELD(ddp_backend_host, store_get, 64);
FIELD(ddp_backend_host, store_value_free, 72);
FIELD(ddp_backend_host, log, 80);
FIELD(ddp_backend_host, interrupted, 88);
FIELD(ddp_backend_host, store_delete, 96);

SIZE(ddp_collective, 144);
FIELD(ddp_collective, struct_size, 0);
FIELD(ddp_collective, kind, 8);
FIELD(ddp_collective, dtype, 12);
FIELD(ddp_collective, op, 16);
FIELD(ddp_collective, root, 20);
FIELD(ddp_collective, send, 24);
FIELD(ddp_collective, recv, 32);
FIELD(ddp_collective, count, 40);
FIELD(ddp_collective, scale, 48);
FIELD(ddp_collective, timeout_ms, 56);
FIELD(ddp_collective, device, 64);
FIELD(ddp_collective, stream, 72);
FIELD(ddp_collective, signature, 80);
FIELD(ddp_collective, theirs, 88);
FIELD(ddp_collective, signature_size, 96);
FIELD(ddp_collective, copied_bytes, 104);
FIELD(ddp_collective, counts, 112);
FIELD(ddp_collective, take, 120);
FIELD(ddp_collective, taker, 128);
FIELD(ddp_collective, carried, 136);

SIZE(ddp_backend, 112);
FIELD(ddp_backend, struct_size, 0);
FIELD(ddp_backend, abi_version, 8);
FIELD(ddp_backend, reserved0, 12);
FIELD(ddp_backend, name, 16);
FIELD(ddp_backend, create, 24);
FIELD(ddp_backend, destroy, 32);
FIELD(ddp_backend, capabilities, 40);
FIELD(ddp_backend, abort, 48);
FIELD(ddp_backend, run, 56);
FIELD(ddp_backend, match, 64);
FIELD(ddp_backend, allocate, 72);
FIELD(ddp_backend, deallocate, 80);
FIELD(ddp_backend, ready, 88);
FIELD(ddp_backend, check, 96);
FIELD(ddp_backend, leave, 104);

SIZE(ddp_context_options, 72);
FIELD(ddp_context_options, struct_size, 0);
FIELD(ddp_context_options, bucket_cap_bytes, 8);
FIELD(ddp_context_options, first_bucket_cap_bytes, 16);
FIELD(ddp_context_options, reduction, 24);
FIELD(ddp_context_options, flags, 28);
FIELD(ddp_context_options, bucket_caps, 32);
FIELD(ddp_context_options, bucket_cap_count, 40);
FIELD(ddp_context_options, rebuild_interval, 48);
FIELD(ddp_context_options, check_interval, 56);
FIELD(ddp_context_options, verify_interval, 64);

SIZE(ddp_param_desc, 72);
FIELD(ddp_param_desc, struct_size, 0);
FIELD(ddp_param_desc, name, 8);
FIELD(ddp_param_desc, shape, 16);
FIELD(ddp_param_desc, ndim, 24);
FIELD(ddp_param_desc, dtype, 28);
FIELD(ddp_param_desc, device, 32);
FIELD(ddp_param_desc, data, 40);
FIELD(ddp_param_desc, grad, 48);
FIELD(ddp_param_desc, flags, 56);
FIELD(ddp_param_desc, uses, 60);
FIELD(ddp_param_desc, grad_dtype, 64);
FIELD(ddp_param_desc, reserved0, 68);

SIZE(ddp_elastic_options, 32);
FIELD(ddp_elastic_options, struct_size, 0);
FIELD(ddp_elastic_options, group, 8);
FIELD(ddp_elastic_options, min_world, 16);
FIELD(ddp_elastic_options, max_world, 20);
FIELD(ddp_elastic_options, settle_ms, 24);

SIZE(ddp_elastic_step, 56);
FIELD(ddp_elastic_step, struct_size, 0);
FIELD(ddp_elastic_step, step, 8);
FIELD(ddp_elastic_step, roster, 16);
FIELD(ddp_elastic_step, rank, 24);
FIELD(ddp_elastic_step, world_size, 28);
FIELD(ddp_elastic_step, changed, 32);
FIELD(ddp_elastic_step, joined, 36);
FIELD(ddp_elastic_step, left, 40);
FIELD(ddp_elastic_step, leaving, 44);
FIELD(ddp_elastic_step, fence, 48);

SIZE(ddp_group_options, 80);
FIELD(ddp_group_options, struct_size, 0);
FIELD(ddp_group_options, rank, 8);
FIELD(ddp_group_options, world_size, 12);
FIELD(ddp_group_options, init_method, 16);
FIELD(ddp_group_options, backend, 24);
FIELD(ddp_group_options, backend_options, 32);
FIELD(ddp_group_options, timeout_ms, 40);
FIELD(ddp_group_options, group_name, 48);
FIELD(ddp_group_options, store, 56);
FIELD(ddp_group_options, secret, 64);
FIELD(ddp_group_options, flags, 72);
FIELD(ddp_group_options, round_robin, 76);

SIZE(ddp_environment, 64);
FIELD(ddp_environment, struct_size, 0);
FIELD(ddp_environment, rank, 8);
FIELD(ddp_environment, world_size, 12);
FIELD(ddp_environment, local_rank, 16);
FIELD(ddp_environment, local_world_size, 20);
FIELD(ddp_environment, restart, 24);
FIELD(ddp_environment, launcher, 32);

SIZE(ddp_tensor, 56);
FIELD(ddp_tensor, struct_size, 0);
FIELD(ddp_tensor, data, 8);
FIELD(ddp_tensor, shape, 16);
FIELD(ddp_tensor, ndim, 24);
FIELD(ddp_tensor, dtype, 28);
FIELD(ddp_tensor, count, 32);
FIELD(ddp_tensor, device, 40);
FIELD(ddp_tensor, param, 48);
FIELD(ddp_tensor, reserved0, 52);

SIZE(ddp_optimizer_state, 56);
FIELD(ddp_optimizer_state, struct_size, 0);
FIELD(ddp_optimizer_state, param, 8);
FIELD(ddp_optimizer_state, dtype, 12);
FIELD(ddp_optimizer_state, first, 16);
FIELD(ddp_optimizer_state, count, 24);
FIELD(ddp_optimizer_state, name, 32);
FIELD(ddp_optimizer_state, data, 40);
FIELD(ddp_optimizer_state, device, 48);

SIZE(ddp_piece, 48);
FIELD(ddp_piece, struct_size, 0);
FIELD(ddp_piece, param, 8);
FIELD(ddp_piece, replicated, 12);
FIELD(ddp_piece, first, 16);
FIELD(ddp_piece, count, 24);
FIELD(ddp_piece, value, 32);
FIELD(ddp_piece, gradient, 40);

SIZE(ddp_stats, 192);
FIELD(ddp_stats, struct_size, 0);
FIELD(ddp_stats, steps, 8);
FIELD(ddp_stats, synced_steps, 16);
FIELD(ddp_stats, rebuilds, 24);
FIELD(ddp_stats, param_count, 32);
FIELD(ddp_stats, bucket_count, 36);
FIELD(ddp_stats, unused_params, 40);
FIELD(ddp_stats, unsent_buckets, 44);
FIELD(ddp_stats, param_bytes, 48);
FIELD(ddp_stats, unused_bytes, 56);
FIELD(ddp_stats, sent_bytes, 64);
FIELD(ddp_stats, backward_ns, 72);
FIELD(ddp_stats, comm_ns, 80);
FIELD(ddp_stats, overlap_ns, 88);
FIELD(ddp_stats, wait_ns, 96);
FIELD(ddp_stats, total_backward_ns, 104);
FIELD(ddp_stats, total_comm_ns, 112);
FIELD(ddp_stats, total_overlap_ns, 120);
FIELD(ddp_stats, total_wait_ns, 128);
FIELD(ddp_stats, last_error, 136);
FIELD(ddp_stats, reserved0, 140);
FIELD(ddp_stats, hook_bytes_in, 144);
FIELD(ddp_stats, hook_bytes_out, 152);
FIELD(ddp_stats, copied_bytes, 160);
FIELD(ddp_stats, bucket_cap_bytes, 168);
FIELD(ddp_stats, tuning, 176);
FIELD(ddp_stats, reserved1, 180);
FIELD(ddp_stats, averaged_bytes, 184);

SIZE(ddp_store_options, 40);
FIELD(ddp_store_options, struct_size, 0);
FIELD(ddp_store_options, uri, 8);
FIELD(ddp_store_options, is_server, 16);
FIELD(ddp_store_options, flags, 20);
FIELD(ddp_store_options, timeout_ms, 24);
FIELD(ddp_store_options, secret, 32);

SIZE(ddp_device, 8);
FIELD(ddp_device, kind, 0);
FIELD(ddp_device, index, 4);
