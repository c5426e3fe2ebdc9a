/* participation.h: who takes part in a step, and with what weight. Parameters that a step does not use, that are frozen
 * or skipped; batches of different sizes; ranks that run out of inputs.
 *
 * UNUSED PARAMETERS. In a model with branches a step may not touch every parameter, and ranks may take different
 * branches. With DDP_CONTEXT_FIND_UNUSED a gradient that was not announced by ddp_finalize (nor in an unsynced step
 * since the last synced one) is unused on this rank and counts as zero. Ranks exchange which they used, after the last
 * bucket (Li et al. 2020, section 3.2.3), and then:
 *   used by some rank     the gradient becomes the mean, here too (DDP_CONTEXT_KEEP_LOCAL_UNUSED: only where it was
 *                         used)
 *   used by no rank       the gradient stays as it was, bit for bit: if the program does not zero it between steps, it
 *                         still holds the mean of the last step that used it
 * ddp_param_used tells the optimizer, which must not step parameters that nobody used. A view of a gradient that a step
 * does not use must not be written from the step's first ddp_grad_ready to its end: zeros stand there meanwhile.
 *
 * With DDP_CONTEXT_STATIC_GRAPH the first synced step finds this out and the following steps rely on it: they exchange
 * nothing, leave out buckets that nobody uses, and a gradient that comes or stays away against the record is an error
 * that names it. The two flags exclude each other.
 */
#ifndef DDP_PARTICIPATION_H
#define DDP_PARTICIPATION_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* Says early that these gradients will not come in this step, so that their buckets need not wait for ddp_finalize.
 * Needs DDP_CONTEXT_FIND_UNUSED, or the first synced step with DDP_CONTEXT_STATIC_GRAPH. In an unsynced step it has no
 * effect, and neither has it for a parameter that was marked before. Errors: INVALID_ARGUMENT (unknown parameter),
 * INVALID_STATE (announced already, or the context does not find unused parameters), or what broke the context; then
 * none is marked.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_mark_unused(ddp_context* context, const ddp_param* params, size_t count, ddp_error** error);

/* *used: 1 if any rank used the parameter in the last synced step, else 0. Without FIND_UNUSED and STATIC_GRAPH every
 * parameter that is not ignored, frozen or skipped is used.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (no synced step has ended yet, or one is under way).
 * Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_param_used(ddp_context* context, ddp_param param, int32_t* used, ddp_error** error);

/* Freezes parameters (frozen 1) or thaws them (0), before ddp_commit or between steps, until changed again. The
 * gradient of a frozen parameter is not expected, not sent and not touched; announcing it is an error. Frozen
 * parameters get buckets of their own, which are not sent, at the next ddp_step_begin; until then a bucket that they
 * share with others carries zeros for them. Errors: INVALID_ARGUMENT, INVALID_STATE (in the middle of a step).
 * Threads: one. Blocks: no. Collective: no, but every rank must freeze the same: a difference is DDP_ERROR_MISMATCH
 * in the next step. Callbacks: no. */
DDP_API ddp_status ddp_set_frozen(ddp_context* context, const ddp_param* params, size_t count, int32_t frozen,
                                  ddp_error** error);

/* Layer dropping (Li et al. 2020, section 6.2.2): these parameters take no part in the next step, which may be unsynced
 * or synced; after its end all take part again. Their gradients are not expected, not sent and not touched; a bucket
 * of nothing else is not sent at all. authority: the rank whose choice counts, which all ranks then receive (params
 * and count of the others are ignored); or -1: every rank gives the same set, drawn from a shared seed, say, and
 * nothing is exchanged. ddp_skipped tells which they are. Errors: INVALID_ARGUMENT, INVALID_STATE (in the middle of a
 * step), or what broke the group.
 * Threads: one. Blocks: with an authority, for it, at most the group's timeout. Collective: with an authority yes;
 * otherwise no, but a difference is DDP_ERROR_MISMATCH in the next synced step. Callbacks: no. */
DDP_API ddp_status ddp_skip_params(ddp_context* context, const ddp_param* params, size_t count, int32_t authority,
                                   ddp_error** error);

/* 1 if the parameter is skipped in the step that comes or is under way, 0 if not; -1 for NULL or an unknown parameter.
 * Threads: any but during ddp_skip_params. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_skipped(const ddp_context* context, ddp_param param);

/* With DDP_REDUCTION_WEIGHTED_MEAN: this rank's weight, normally the number of samples in its batch (in its batches, if
 * unsynced steps came before; the gradient is then the sum of theirs, each already weighted by the program). Call it
 * before ddp_step_begin, which exchanges the weights; it holds until changed. 1 at first; 0 is allowed on some
 * ranks. Errors: INVALID_ARGUMENT (negative or not finite), INVALID_STATE (another reduction; from ddp_step_begin to the
 * end of the step).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_weight(ddp_context* context, double weight, ddp_error** error);

/* Uneven inputs (PyTorch's Join). With DDP_CONTEXT_JOIN a rank whose inputs are used up calls ddp_join instead of the
 * next ddp_step_begin. It then takes part in the other ranks' steps with gradients of zero, until all ranks have
 * joined, and returns when the parameters and buffers of the rank that joined last (the highest of them) have been sent
 * to everyone. Until then ddp_step_begin sends the buffers of the lowest rank that still has inputs (PyTorch: of the
 * highest). The mean divides by the world size, or with DDP_CONTEXT_DIVIDE_BY_PRESENT by the number of ranks that
 * had inputs. Gradients on a joined rank hold unspecified values. After it, steps may follow: the next epoch.
 * Errors: UNEVEN_INPUTS (with STOP_AT_FIRST_JOIN: here and out of the other ranks' ddp_step_begin; the context is
 * usable), INVALID_STATE (no DDP_CONTEXT_JOIN; in the middle of a step), or what broke the group.
 * Threads: one. Blocks: until all ranks have joined; each exchange at most the group's timeout. Collective: yes.
 * Callbacks: no. */
DDP_API ddp_status ddp_join(ddp_context* context, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_PARTICIPATION_H */
