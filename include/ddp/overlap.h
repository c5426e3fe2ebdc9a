/* overlap.h: the optimizer (or the next forward pass) at work on gradients that are done while others still travel.
 *
 *     ddp_finalize_async(ctx, &error);
 *     for each parameter, in any order:  ddp_wait_param(ctx, param, &error);  update it
 *     ddp_finalize(ctx, &error);
 *
 * Gradients are done in bucket order, so updating in the order of the backward pass waits least.
 */
#ifndef DDP_OVERLAP_H
#define DDP_OVERLAP_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* The end of the backward pass without waiting: what ddp_finalize does up to the first wait. ddp_finalize must follow
 * and ends the step. Errors: as ddp_finalize, as far as they are known.
 * Threads: one, no ddp_grad_ready at the same time. Blocks: no. Collective: yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize_async(ddp_context* context, ddp_error** error);

/* Between ddp_finalize_async and ddp_finalize: waits until this parameter's gradient is final, written back included.
 * (Without waiting for devices: ddp_wait_param_on in device.h.)
 * Returns at once in an unsynced step. Errors: as ddp_finalize; INVALID_STATE at any other time, INVALID_ARGUMENT.
 * Threads: one. Blocks: for all ranks, at most the group's timeout a bucket; runs reductions itself meanwhile.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_wait_param(ddp_context* context, ddp_param param, ddp_error** error);

/* Called once for each parameter and synced step when its gradient is final, bucket by bucket, on the thread inside
 * ddp_finalize or ddp_wait_param. used: 0 if no rank used it, and its gradient is untouched. It may update the
 * parameter. To fail return a status, and set *error if there is more to say (ownership passes): the error comes out of
 * the call and breaks the context on every rank. */
typedef ddp_status (*ddp_reduced_fn)(void* user_data, ddp_param param, int32_t used, ddp_error** error);

/* Installs the callback; fn NULL: none. destroy (may be NULL) is called exactly once when user_data is no longer
 * needed, but not if this call fails. Errors: INVALID_ARGUMENT, INVALID_STATE (in the middle of a step).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_reduced_callback(ddp_context* context, ddp_reduced_fn fn, void* user_data,
                                            void (*destroy)(void* user_data), ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_OVERLAP_H */
