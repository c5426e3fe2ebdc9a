/* batch_share.h: each rank's share of a global batch, by the speed of the ranks. A fast rank takes
 * more samples than a slow one, so that both end the backward pass at the same time.
 *
 *     options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;  ddp_context_create; ...
 *     ddp_share_batch(ctx, 960, 8, 0, &error);  ddp_commit
 *     each step:
 *         ddp_batch_share(ctx, &begin, &end, &error);
 *         ddp_set_weight(ctx, end - begin, &error);
 *         ddp_step_begin(ctx, &error);
 *         load samples begin to end - 1 of the global batch; forward and backward pass
 *         ddp_finalize(ctx, &error);                    the mean of the global batch
 *
 * SHARES are counted in samples. They sum to the global batch exactly, are multiples of `multiple`,
 * and none is 0. They lie in the order of ranks, and every rank computes the same ones. libddp
 * proposes, and the program loads: the mean is right for any samples, because ranks tell each other
 * their weights in ddp_step_begin. So does a program whose loader is some steps ahead, or has less
 * at the end of an epoch: it gives the samples that it has. Each ddp_step_begin needs a
 * ddp_set_weight before it, so that a share cannot change and the weight stay.
 *
 * TIME. libddp takes the time from the end of ddp_step_begin to ddp_finalize or ddp_finalize_async:
 * load, forward and backward pass belong there. It leaves out what is between steps, because ranks
 * wait for each other in ddp_step_begin anyway. Collectives of the program's own in that time make
 * a fast rank look slower than it is. With parameters on a device the host is ahead of it: the
 * program takes the time and gives it to ddp_batch_time.
 *
 * WHEN SHARES CHANGE. They are equal at first. Ranks tell each other the time of each step with its
 * weight: 8 bytes in the message of ddp_step_begin, and no message more. The median of 15 steps
 * counts, so a pause does not. The two steps after the start and after a change do not count, as
 * the first one with other shapes may compile. Then shares change if the slowest rank should take
 * at least 5 % less time. Shares stay as they are in a window of unsynced steps.
 *   steps that do not count     discarded ones; with a weight of 0 on some rank; with a rank in
 *                               ddp_join
 *   ddp_context_set_group       begins again with equal shares
 *
 * A rank whose time does not grow with its samples has a fixed part in it. Then the shares come
 * closer with each change: with half of the time fixed, by half.
 *
 * EXPERIMENTAL: the number of steps and the 5 % may change.
 */
#ifndef DDP_BATCH_SHARE_H
#define DDP_BATCH_SHARE_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Asks for shares, before ddp_commit. samples: of the global batch of a step, at most 2^32.
 * multiple: of which each share is one, and `samples` as well, such as the size of a micro-batch.
 * most: the samples that fit this rank's memory; 0: no bound. samples and multiple must be alike
 * on all ranks, else ddp_commit returns MISMATCH; `most` may differ. Errors: INVALID_ARGUMENT,
 * INVALID_STATE (after ddp_commit, another reduction). Threads: one. Blocks: no. Collective: no.
 * Callbacks: no. */
DDP_API ddp_status ddp_share_batch(ddp_context* context, int64_t samples, int64_t multiple,
                                   int64_t most, ddp_error** error);

/* This rank's share of the step that has begun, or, between steps, of the next one: samples *begin
 * to *end - 1 of the global batch. Errors: INVALID_STATE (before ddp_commit; no ddp_share_batch);
 * INVALID_ARGUMENT, on all ranks and in ddp_step_begin as well, if the ranks of the group cannot
 * hold the batch, or it has less than one multiple a rank. Threads: one. Blocks: no. Collective:
 * no. Callbacks: no. */
DDP_API ddp_status ddp_batch_share(ddp_context* context, int64_t* begin, int64_t* end,
                                   ddp_error** error);

/* The time in nanoseconds that this rank itself has computed in the last step, instead of that
 * which libddp has taken. With parameters on a device call it after each step. Errors:
 * INVALID_ARGUMENT (not positive), INVALID_STATE (as above; before the first step ends; during a
 * step). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_batch_time(ddp_context* context, int64_t ns, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_BATCH_SHARE_H */
