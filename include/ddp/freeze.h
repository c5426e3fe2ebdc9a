/* freeze.h: parameters that take no part for a while, and batches of different sizes.
 *
 * EXPERIMENTAL: frozen and skipped parameters may become one function with a mask, and the weight
 * an argument of ddp_step_begin.
 */
#ifndef DDP_FREEZE_H
#define DDP_FREEZE_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Freezes parameters (frozen 1) or thaws them (0), before ddp_commit or between steps, until the
 * next change. libddp does not expect, send or touch the gradient of a frozen parameter; announcing
 * it is a MISMATCH. At the next ddp_step_begin frozen parameters get buckets of their own, which
 * are not sent. Until then a shared bucket carries zeros for them. Every rank must freeze the same
 * parameters: a difference is a MISMATCH in the next step. Errors: INVALID_ARGUMENT, INVALID_STATE
 * (during a step). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_frozen(ddp_context* context, const ddp_param* params, size_t count,
                                  int32_t frozen, ddp_error** error);

/* Layer dropping (Li et al. 2020, section 6.2.2): these parameters take no part in the next step,
 * synced or unsynced. After its end all parameters take part again. libddp does not expect, send or
 * touch their gradients, and does not send a bucket that holds nothing else. ddp_skipped tells
 * which parameters are skipped. authority: the rank whose choice counts. All ranks receive it;
 * params and count of the others are ignored. The call
 *     is then collective and waits for the authority, at most the group's timeout for each
 *     exchange. -1: nothing is
 *     exchanged. Every rank gives the same set, for example drawn from a shared seed; a difference
 *     is a MISMATCH in the
 *     next synced step.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (before ddp_commit, during a step), UNSUPPORTED (with
 * DDP_CONTEXT_JOIN), or the group's error. Threads: one. Blocks: with an authority. Collective:
 * with an authority. Callbacks: no. */
DDP_API ddp_status ddp_skip_params(ddp_context* context, const ddp_param* params, size_t count,
                                   int32_t authority, ddp_error** error);

/* 1 if the parameter is skipped in the step under way or in the next one, else 0. -1 for NULL or an
 * unknown parameter. Threads: any but during ddp_skip_params. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API int32_t ddp_skipped(const ddp_context* context, ddp_param param);

/* Sets this rank's weight for DDP_REDUCTION_WEIGHTED_MEAN (sum of weight * gradient / sum of
 * weights), normally the number of samples in its batch. Initially 1; 0 is allowed on some ranks.
 * Call it before ddp_step_begin, which exchanges the weights. It holds until changed. After
 * unsynced steps, give the samples of all their batches: the gradient is then a sum of the batches'
 * gradients, each already weighted by the program. Errors: INVALID_ARGUMENT (negative or not
 * finite), INVALID_STATE (another reduction; from ddp_step_begin to the end of the step). Threads:
 * one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_weight(ddp_context* context, double weight, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_FREEZE_H */
