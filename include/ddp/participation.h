/* participation.h: who takes part in a step: parameters that a step does not use, and ranks that
 * run out of inputs. freeze.h has frozen and skipped parameters, and batches of different sizes.
 *
 * UNUSED PARAMETERS. In a model with branches a step may not touch every parameter, and ranks may
 * take different branches. With DDP_CONTEXT_FIND_UNUSED, a gradient is unused on this rank if it
 * was not announced before ddp_finalize, nor in an unsynced step since the last synced one. It
 * counts as zero, unless DDP_CONTEXT_ACCUMULATE says otherwise. After the last bucket the ranks
 * exchange which gradients they used (Li et al. 2020, section 3.2.3):
 *   used by some rank     The gradient becomes the mean on every rank. With DDP_CONTEXT_KEEP_LOCAL_UNUSED: only on the
 *                         ranks that used it.
 *   used by no rank       The gradient stays as it was, bit for bit. Unless the program zeroes it between steps, it
 *                         holds the mean of the last step that used it.
 * A program may add to gradients over several synced steps and zero them only then. Before each of
 * these steps a gradient then holds the mean of the steps before, and an unused one must count with
 * it, not as zero. Such a program creates the context with DDP_CONTEXT_ACCUMULATE: an unused
 * gradient counts with what its place holds. That is zero once the program has zeroed it. Gradients
 * that come with ddp_put, rows and factors still count as zero. Without the flag libddp warns once
 * if it finds a mean in an unused gradient on the CPU. The optimizer must not step parameters that
 * no rank used; ddp_param_used tells it. Do not write the view of an unused gradient from the
 * step's first ddp_grad_ready to the step's end: it holds zeros meanwhile. With
 * DDP_CONTEXT_SKIP_UNUSED_BUCKETS the ranks first exchange one byte for each bucket, and do not
 * send a bucket that no rank uses.
 *
 * STATIC GRAPH. With DDP_CONTEXT_STATIC_GRAPH the first synced step, and the first one after
 * ddp_context_set_group, records which gradients are used. Later steps rely on the record: they
 * exchange nothing and leave out buckets that no rank uses. A gradient that comes against the
 * record is a MISMATCH, one that stays away is MISSING_GRADIENT; both errors name it. The two flags
 * exclude each other.
 */
#ifndef DDP_PARTICIPATION_H
#define DDP_PARTICIPATION_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* Says early that these gradients will not come in this step, so that their buckets need not wait
 * for ddp_finalize. Needs DDP_CONTEXT_FIND_UNUSED, or the first synced step with
 * DDP_CONTEXT_STATIC_GRAPH. No effect in an unsynced step, or on a parameter marked before. Errors:
 * INVALID_ARGUMENT (unknown parameter), INVALID_STATE (already announced, or the context does not
 * find unused parameters), or the context's error. On an error none is marked. Threads: any.
 * Blocks: as ddp_grad_ready. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_mark_unused(ddp_context* context, const ddp_param* params, size_t count,
                                   ddp_error** error);

/* *used: 1 if any rank used the parameter in the last synced step, else 0. Without FIND_UNUSED and
 * STATIC_GRAPH, all parameters count as used except ignored, frozen and skipped ones. Errors:
 * INVALID_ARGUMENT, INVALID_STATE (no synced step has ended yet, or a step is under way). Threads:
 * any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_param_used(ddp_context* context, ddp_param param, int32_t* used,
                                  ddp_error** error);

/* Uneven inputs (PyTorch's Join). With DDP_CONTEXT_JOIN, a rank without more inputs calls ddp_join
 * instead of the next ddp_step_begin. It then takes part in the other ranks' steps with gradients
 * of zero, until all ranks have joined. At the end the rank that joined last (the highest of
 * several) sends its parameters and buffers to everyone. Steps may follow: the next epoch.
 *
 * Until all have joined, ddp_step_begin sends the buffers of the lowest rank that still has inputs
 * (PyTorch: of the highest). The mean divides by the world size; with
 * DDP_CONTEXT_DIVIDE_BY_PRESENT, by the number of ranks that had inputs. Gradients on a joined rank
 * hold unspecified values.
 *
 * Errors: UNEVEN_INPUTS (with STOP_AT_FIRST_JOIN, here and from the other ranks' ddp_step_begin;
 * the context stays usable), INVALID_STATE (no DDP_CONTEXT_JOIN; during a step; with
 * DDP_CONTEXT_SHARD no updates in the step), or the group's error. Threads: one. Blocks: until all
 * joined, each exchange at most the group's timeout. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_join(ddp_context* context, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_PARTICIPATION_H */
