/* norm.h: the norm of all gradients together, or of some, and clipping by it. libddp computes it
 * while it finishes buckets, from numbers that it has at hand.
 *
 *     ddp_track_grad_norm(ctx, 2, NULL, 0, &norm, &error);    before ddp_commit
 *     each step:
 *         ddp_finalize(ctx, &error);
 *         ddp_clip_grad_norm(ctx, norm, 1.0, &value, &error);
 *         optimizer
 *
 * A NORM is one number over a list of parameters. It counts the results of a step: the mean, or the
 * sum, that ddp_finalize gives, as the hook left it. It has the same bits on every rank, if results
 * have. A parameter may be in several norms, or in none.
 *   dense       all elements. Of a complex number the magnitude counts.
 *   sparse      the rows of ddp_sparse_gradient. Each row counts once, as the sum of its
 *               duplicates.
 *   empty, or that no rank used in the step, frozen, skipped, ignored     0
 *
 * PRECISION. Terms are computed and added in f64, each parameter by itself, in an order that
 * depends on nothing but its length. Then the parameters are added, in their order. So the bits do
 * not depend on buckets, nor on the machine, nor on whether a device counts. The relative error of
 * the n terms of a parameter is below (80 + n / 2^18) 2^-53. The 2-norm of f64 is infinite if
 * squares overflow (numbers beyond 1e154), and squares below 1e-308 count as 0.
 *
 * MANY NUMBERS (2^18 or more in host memory, and none on devices): ranks share the counting, in
 * shared memory while they reduce. Each parameter is then cut where its bucket is, every 64 KiB, so
 * the last bits depend on the buckets. When ddp_finalize ends, the sums of the parts are exchanged
 * in one allreduce of 8 bytes each: 1/8192 of the bytes of gradients, and 8 bytes a parameter.
 *
 * WITH DDP_CONTEXT_SHARD each rank counts its own pieces, rank 0 what all ranks own, and the
 * ranks' sums are added in the order of ranks. So the last bits depend on the world and on the
 * buckets. The sums are exchanged when ddp_finalize ends, in one allgather of 16 bytes a norm.
 *
 * With DDP_CONTEXT_SKIP_NONFINITE either exchange is that of check.h, whose byte travels along. In
 * all other cases nothing is sent.
 *
 * NAN AND INFINITY make the norm NaN or infinite, on all ranks. Only ddp_clip_grad_norm and
 * ddp_clip_factor refuse them. With a flag of check.h the step has failed before.
 *
 * AN OPTIMIZER that multiplies gradients by a number itself (ddp_optimizer_step) takes that of
 * ddp_clip_factor. That saves ddp_clip_grad_norm its pass over the gradients.
 *
 * ON DEVICES kernels count the terms in the order of the context's streams, with the bits of the
 * CPU. The host does not wait for them before ddp_grad_norm or ddp_clip_grad_norm asks, except with
 * DDP_CONTEXT_SHARD and several ranks: then ddp_finalize_on and ddp_finalize_enqueue wait, too.
 * Clipping is enqueued, after what is on the streams of ddp_set_stream and before what the program
 * enqueues on them later. A step with norms cannot be part of a graph (device.h).
 *
 * Not with DDP_CONTEXT_KEEP_LOCAL_UNUSED, ddp_set_update (shard.h), hooks that do not reduce over
 * all ranks, and gradients of integers. A norm is known when the step ends, not in ddp_wait_param,
 * nor in the reduced callback or a hook.
 *
 * EXPERIMENTAL: norms in graphs of devices may be added.
 */
#ifndef DDP_NORM_H
#define DDP_NORM_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Asks for a norm in each synced step, before ddp_commit and alike on all ranks. p: 1, 2 or
 * infinity. params NULL and count 0: all parameters of the context. norm: its number, from 0 on.
 * Errors: INVALID_ARGUMENT (also a parameter that is there twice), INVALID_STATE (after
 * ddp_commit). Threads: one. Blocks: no. Collective: no, but compared by ddp_commit, which returns
 * UNSUPPORTED for what has no norm. Callbacks: no. */
DDP_API ddp_status ddp_track_grad_norm(ddp_context* context, double p, const ddp_param* params,
                                       size_t count, int32_t* norm, ddp_error** error);

/* The norm in the last step, before clipping. norm: of ddp_track_grad_norm. Errors:
 * INVALID_ARGUMENT; INVALID_STATE (during a step; before the first; the last step was not synced,
 * had no result, or failed); with gradients on devices also those of ddp_finalize. Threads: any
 * between steps. Blocks: until devices have come to the end of the step. Collective: no. Callbacks:
 * no. */
DDP_API ddp_status ddp_grad_norm(ddp_context* context, int32_t norm, double* value,
                                 ddp_error** error);

/* Multiplies the gradients that the norm counts by min(1, max_norm / (norm + 1e-6)), as PyTorch's
 * clip_grad_norm_ does; with DDP_CONTEXT_SHARD those of this rank's pieces. Reads and writes no
 * gradient if that is 1. At most once a step for each parameter. value: the norm before. Errors:
 * as ddp_grad_norm; INVALID_ARGUMENT (max_norm is NaN or negative); INVALID_STATE (a parameter was
 * clipped in this step); NONFINITE, on all ranks, naming the first such parameter: gradients then
 * stay as they are. Threads: one, between steps. Blocks: as ddp_grad_norm. Collective: no, but
 * alike on all ranks. Callbacks: no. */
DDP_API ddp_status ddp_clip_grad_norm(ddp_context* context, int32_t norm, double max_norm,
                                      double* value, ddp_error** error);

/* value: the number by which ddp_clip_grad_norm would multiply. Changes nothing. Errors: as of
 * ddp_clip_grad_norm. Threads: one, between steps. Blocks: no. Collective: no, but alike on all
 * ranks. Callbacks: no. */
DDP_API ddp_status ddp_clip_factor(ddp_context* context, int32_t norm, double max_norm,
                                   double* value, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_NORM_H */
