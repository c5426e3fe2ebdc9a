/* overlap.h: the optimizer, or the next forward pass, uses finished gradients while others still
 * travel.
 *
 *     ddp_finalize_async(ctx, &error);
 *     for each parameter, in any order:  ddp_wait_param(ctx, param, &error);  update it
 *     ddp_finalize(ctx, &error);
 *
 * Gradients finish in bucket order, so updating in the order of the backward pass waits least.
 *
 * EXPERIMENTAL: ddp_wait_param may take several parameters, and the callback may get a bucket.
 */
#ifndef DDP_OVERLAP_H
#define DDP_OVERLAP_H

#include "experimental.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

/* Ends the backward pass without waiting: does what ddp_finalize does before its first wait.
 * ddp_finalize must follow, and ends the step. Errors: as ddp_finalize, as far as they are known by
 * then. Threads: one, no ddp_grad_ready at the same time. Blocks: as ddp_grad_ready. Collective:
 * yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize_async(ddp_context* context, ddp_error** error);

/* Waits until this parameter's gradient is final, and (copy) written back. Call it between
 * ddp_finalize_async and ddp_finalize. In an unsynced step it returns at once. If this rank did not
 * use the parameter, it waits for all buckets. The waiting thread may run reductions.
 * ddp_wait_param_on (device.h) does not wait for the device. Errors: as ddp_finalize; INVALID_STATE
 * (at any other time), INVALID_ARGUMENT. Threads: one. Blocks: for all ranks, at most the group's
 * timeout a bucket. Collective: no, but see check.h. Callbacks: no. */
DDP_API ddp_status ddp_wait_param(ddp_context* context, ddp_param param, ddp_error** error);

/* A callback for final gradients. libddp calls it once for each parameter and synced step, bucket
 * by bucket, on the thread inside ddp_finalize or ddp_wait_param. used: 0 if no rank used the
 * parameter; its gradient is then untouched. It may update the parameter. To fail, it returns an
 * error status, and may set *error (libddp takes ownership): the call then returns this error, and
 * the context breaks on every rank. */
typedef ddp_status (*ddp_reduced_fn)(void* user_data, ddp_param param, int32_t used,
                                     ddp_error** error);

/* Installs the callback. fn NULL: none. destroy (may be NULL) is called exactly once when user_data
 * is no longer needed, but not if this call fails. Errors: INVALID_ARGUMENT, INVALID_STATE (during
 * a step). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_reduced_callback(ddp_context* context, ddp_reduced_fn fn,
                                            void* user_data, void (*destroy)(void* user_data),
                                            ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_OVERLAP_H */
