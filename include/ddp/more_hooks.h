/* more_hooks.h: functions around communication hooks, and a hook for buffers.
 *
 * EXPERIMENTAL: a wrapper may become an option of ddp_use_hook.
 */
#ifndef DDP_MORE_HOOKS_H
#define DDP_MORE_HOOKS_H

#include "builtin_hooks.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Wraps the installed hook, a user's or a built-in one. It receives buckets cast to `dtype`,
 * DDP_F16 or DDP_BF16, and its result is cast back. Buckets of f16, bf16, integers and complex
 * numbers reach it unchanged. Values beyond 65,504 become infinite in f16. Errors and facts as
 * ddp_use_hook. */
DDP_API ddp_status ddp_compress_hook(ddp_context* context, ddp_dtype dtype, ddp_error** error);

/* libddp calls it when a bucket's gradients are reduced, while later ones still travel: for an
 * optimizer that updates the bucket's parameters. The bucket's buffer holds the result. */
typedef ddp_status (*ddp_bucket_fn)(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                    ddp_error** error);

/* Wraps the installed hook: after it has reduced a bucket, libddp calls fn for the bucket, in
 * bucket order. With a round robin group this is the order within each of its groups; calls for
 * buckets of different groups may overlap. flags: 0, and fn runs only on a thread inside a libddp
 * call; or DDP_WORK_ANY_THREAD (group.h). destroy: as in ddp_set_comm_hook. If fn fails,
 * ddp_finalize returns the error and names the bucket. Errors and facts as ddp_use_hook;
 * UNSUPPORTED for unknown flags. */
DDP_API ddp_status ddp_hook_then(ddp_context* context, ddp_bucket_fn fn, void* user_data,
                                 void (*destroy)(void* user_data), uint32_t flags,
                                 ddp_error** error);

/* A buffer hook: ddp_step_begin calls it where it would send rank 0's buffers, after a synced step
 * and only if there are buffers. buffers: pointers to `count` tensors, valid during the call; their
 * `param` is -1. group: the context's, borrowed. To fail, return an error status, and to say more
 * set *error (libddp takes ownership). */
typedef ddp_status (*ddp_buffer_hook_fn)(void* user_data, ddp_group* group,
                                         const ddp_tensor* const* buffers, size_t count,
                                         ddp_error** error);

/* Installs a buffer hook. fn NULL: the default. Every rank must use the same. destroy: as in
 * ddp_set_comm_hook. Errors: INVALID_ARGUMENT, INVALID_STATE (during a step). Threads: one. Blocks:
 * no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_buffer_hook(ddp_context* context, ddp_buffer_hook_fn fn, void* user_data,
                                       void (*destroy)(void* user_data), ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_MORE_HOOKS_H */
