/* vote.h: a few bits of each rank that travel with a step, so that all ranks act in the same step:
 * on a signal that reaches them in different ones, on a loss that is not finite on one of them.
 *
 *     options.flags = DDP_CONTEXT_VOTES;  ddp_context_create; ...; ddp_commit
 *     each step:
 *         ddp_step_vote(ctx, DDP_VOTE_CHECKPOINT, &error);        on any rank, at any time
 *         gradients; ddp_finalize(ctx, &error);
 *         ddp_step_votes(ctx, &any, &all, &level, &error);        the same on every rank
 *         if (any & DDP_VOTE_CHECKPOINT) write a checkpoint
 *
 * VOTES are advice: libddp acts on none of them. Some ranks may vote in a step and others not.
 *
 * A VOTE COUNTS IN ONE STEP, the same on all ranks: the first synced step whose last bucket starts
 * on this rank after the call. So a vote before the last gradient of a synced step counts in it. A
 * later one counts in it or in the next.
 *   unsynced step           The vote waits for the synced step that ends the window.
 *   skipped (check.h), discarded, weight 0      It counts as in any other step.
 *   ddp_join                A rank that has joined still votes. `all` asks only the ranks with
 *                           inputs.
 *   several contexts        Each has votes of its own.
 *   the group breaks        What this rank has cast in the step that failed, and the votes of all
 *                           ranks in the last one that ended, count again in the context's next
 *                           group, because other ranks may not have heard of them. So a vote is
 *                           never lost while its rank, or one that has heard of it, lives, but may
 *                           then count twice. Elastic jobs do the same (elastic.h).
 *
 * NO COLLECTIVE IS ADDED on tcp and shm, nor on hierarchical if all hosts have as many ranks: votes
 * travel with the message by which ranks meet for the last bucket. Not in the bucket itself: hooks
 * change what is in it, and with shards not every rank gets all of it. Otherwise ddp_finalize and
 * ddp_step_discard end with an allgather of 16 bytes a rank: on other backends (gloo, mpi, nccl,
 * your own), with gradients on a device that nccl reduces, and with a hook that the program gives
 * (ddp_set_comm_hook, ddp_hook_then) or that sends nothing (noop). ddp_finalize_on and
 * ddp_finalize_enqueue then wait for all ranks. A step with votes cannot be part of a graph
 * (device.h).
 *
 * A LAUNCHER VOTES, TOO: `ddprun --checkpoint-on SIGUSR1 --stop-on SIGTERM` makes such a signal to
 * ddprun a vote of one of its ranks, in all of its contexts. No signal reaches the program.
 * ddp_context_create returns UNAVAILABLE if the rank does not see ddprun's memory (/proc).
 *
 * EXPERIMENTAL: bits 4 to 15 may get names.
 */
#ifndef DDP_VOTE_H
#define DDP_VOTE_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

enum {
    DDP_VOTE_STOP = 1u << 0,       /* end the training after this step */
    DDP_VOTE_CHECKPOINT = 1u << 1, /* write a checkpoint after this step */
    DDP_VOTE_SKIP = 1u << 2,       /* do not apply this step's gradients */
    DDP_VOTE_NONFINITE = 1u << 3,  /* a loss was not finite */
    DDP_VOTE_USER = 1u << 16       /* this bit and those above belong to the program */
};

/* Casts these bits, and those of earlier calls since the last vote left. Errors: INVALID_STATE
 * (before ddp_commit; no DDP_CONTEXT_VOTES), UNSUPPORTED (a bit without a name, below
 * DDP_VOTE_USER). Threads: any, and in a signal handler, where only these errors are not safe.
 * Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_step_vote(ddp_context* context, uint32_t bits, ddp_error** error);

/* Casts a number from 0 to 32, of which the greatest of all ranks counts. Errors:
 * INVALID_ARGUMENT, INVALID_STATE as above. Threads: any, as above. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API ddp_status ddp_step_vote_level(ddp_context* context, int32_t level, ddp_error** error);

/* The votes of the last step. any: bits that at least one rank has cast. all: bits that every rank
 * has cast. level: the greatest; 0 if there was none. Each may be NULL. All are 0 after an unsynced
 * step, a step that failed, and before the first. Errors: INVALID_STATE (during a step; no
 * DDP_CONTEXT_VOTES). Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_step_votes(ddp_context* context, uint32_t* any, uint32_t* all,
                                  int32_t* level, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_VOTE_H */
