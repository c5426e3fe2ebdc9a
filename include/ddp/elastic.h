/* elastic.h: a job whose ranks come and go. It goes on without those that die, and takes in those
 * that come.
 *
 *     ddp_elastic_create(&options, &elastic, &error);
 *     ddp_context_create(ddp_elastic_group(elastic), NULL, &ctx, &error);    // register parameters, ddp_commit
 *     ddp_elastic_add_context(elastic, ctx, &error);
 *     ddp_elastic_add_state(elastic, "momentum", momentum, bytes, &error);
 *     while (ddp_elastic_begin(elastic, &now, &error) == DDP_OK && now.step < steps) {
 *         compute(now.step, now.rank, now.world_size);                       // ddp_grad_ready
 *         if (ddp_finalize(ctx, &error) != DDP_OK) {                         // any call may fail when a rank is lost
 *             if (ddp_group_status(ddp_elastic_group(elastic), NULL) == DDP_OK) break;  // none was: a mistake of ours
 *             ddp_error_free(error), error = NULL;
 *             continue;                                                      // ddp_elastic_begin decides
 *         }
 *         optimizer();
 *         if (ddp_elastic_commit(elastic, &error) != DDP_OK) ddp_error_free(error), error = NULL;  // the same
 *     }
 *     if (error) { ... }                                     // print it, and exit with another status than 0
 *
 * ONE HISTORY. All ranks that stay apply a step, or none does. When a rank is lost, some ranks may
 * have finished the step and others not. In the next ddp_elastic_begin the ranks that are behind
 * get the state of the ranks that are ahead. If no rank is ahead, all ranks do the step again. So
 * the same step may begin twice, with another rank and world size. ddp_elastic_begin undoes the
 * changes of a step that was not committed.
 *
 * WHEN THE STATE CHANGES. Change values and added states only between the first mean gradients of a
 * step (ddp_finalize, ddp_wait_param, a reduced callback, the function of ddp_hook_then) and
 * ddp_elastic_commit. Buffers may change from ddp_elastic_begin on. If the program calls no
 * collective between the mean gradients and the commit, libddp copies the buffers in each step, so
 * that it can undo their changes. If it does call one (a loss for the log, a norm, a second
 * context), a rank can be lost while others have applied the step or a part of it. libddp then
 * copies the whole state in each step, which takes the memory and the time of that copy. libddp
 * learns from each step what the program calls, and copies the whole state in the first step. One
 * case stays open: the program calls such a collective for the first time in a later step, a rank
 * is lost in that step, and all other ranks already have its mean gradients. Then ddp_elastic_begin
 * is INVALID_STATE. To avoid the copies, call collectives before ddp_finalize or after
 * ddp_elastic_commit, and commit after the optimizer of each context: a step may train one of
 * several contexts.
 *
 * ACCUMULATION. A window is a run of unsynced steps (ddp_set_sync) with the synced step that ends
 * it. Ranks join and leave only between windows. If a rank is lost within a window, all ranks go
 * back to its first step and discard what they have accumulated: ddp_elastic_begin zeroes the
 * gradients of undone steps in CPU memory, and those of a rank that joins.
 *
 * STATE. It consists of the values (ddp_param_desc.data) of parameters and buffers, what
 * ddp_elastic_add_state names, the bucket plan, the state of the communication hook that ranks
 * share, that of the averager, and the number of steps. A rank that joins gets all of it before its
 * first step. In the first roster the values of rank 0 become those of all. From then on every rank
 * has the same state. When ranks meet, they compare it. If ranks with equally many steps hold
 * different bits, the most frequent bits win, and in a tie those of the lowest rank; a warning
 * names the ranks. Buffers become those of one rank. State that a hook keeps for each rank, such as
 * error feedback, starts empty on a rank that lacks it. If a step is done again, it keeps what the
 * first attempt added.
 *
 * ROSTERS. A roster is the ranks that train together. The store orders rosters, so only one exists
 * at a time. Each has a group of its own. The ranks of a host follow each other (DDP_HOST_ID:
 * docs/backends.md), so a rank that stays may get another number when one joins.
 *
 * SAMPLES. If those of a step depend on its number alone, a step that is done again has the same
 * ones, whatever the world: take the next global batch of the epoch's order, and of it the part
 * that ddp_shard_range gives this rank.
 *
 * CHECKPOINTS. A rank may be stopped between ddp_elastic_commit and the end of writing, while the
 * others go on and write a newer checkpoint. So put `fence` and the number of steps into the file's
 * name, in this order, and let readers take the highest: then no file replaces one of a later
 * roster. Also call ddp_elastic_confirm_member between writing and renaming: it fails on a rank
 * that was left behind before the call. A rank that is stopped after the call still renames. Fences
 * grow even when a job begins anew. etcd and file stores keep the last fence. A new tcp store
 * begins with the time of day in milliseconds, so setting the clock back can make a fence smaller.
 *
 * SHARDS. With DDP_CONTEXT_SHARD (shard.h) each rank has optimizer state that no other rank has. So
 * the program says where the state of a step is kept, and after each change of the roster all ranks
 * go back to the last step that was kept:
 *
 *     ddp_elastic_begin(elastic, &now, &error);
 *     if (now.changed) {
 *         for each piece (shard.h): make its state;  ddp_shard_array(ctx, "m", piece.param, ...)
 *         ddp_elastic_recall_shards(elastic, ctx, &found, &error);
 *         if (!found) {             a new job; after INVALID_STATE: neighbours were lost together
 *             ddp_shard_load; or values and state as at first, and ddp_publish;
 *             ddp_shard_array for each array;
 *             ddp_elastic_keep_shards(elastic, ctx, step, DDP_KEEP_AT_NEIGHBOUR, &error);
 *         }
 *     }
 *     gradients; ddp_finalize; optimizer; ddp_publish;
 *     ddp_elastic_commit(elastic, &error);
 *     ddp_shard_array for each array;               after each step, or each tenth
 *     ddp_elastic_keep_shards(elastic, ctx, now.step + 1, DDP_KEEP_AT_NEIGHBOUR, &error);
 *
 * The job has that context only, and no averager. Ranks join and leave right after
 * ddp_elastic_keep_shards. Buffers and added states go back with the shards.
 *
 * THE STORE must outlive all ranks: etcd, one that another process runs (ddp_store_create), or a
 * file. Its end is the end of the job.
 *
 * EXPERIMENTAL: the steps of a job may take other structs, and the rules of membership may change.
 */
#ifndef DDP_ELASTIC_H
#define DDP_ELASTIC_H

#include "averager.h"
#include "context.h"
#include "experimental.h"
#include "group.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_elastic ddp_elastic;

typedef struct ddp_elastic_options {
    size_t struct_size;
    /* The store, and how groups are made. rank and world_size must be -1. group_name names the job.
     * NULL: the defaults, with the store that the environment names. */
    const ddp_group_options* group;
    /* Fewer ranks wait for others, at most timeout_ms of the group. 0: DDP_ELASTIC_MIN_WORLD
     * (environment), or 1. */
    int32_t min_world;
    /* more ranks wait until there is room. 0: DDP_ELASTIC_MAX_WORLD, or no limit */
    int32_t max_world;
    /* Milliseconds that the first roster waits for more than min_world ranks, and a later one for a
     * rank that is not known to be dead but does not call ddp_elastic_begin. The others go on
     * without it then, so this must be longer than the longest step, evaluation or checkpoint. 0:
     * 30,000. The first roster does not wait for more ranks than DDP_ELASTIC_FIRST_WORLD, which
     * ddprun sets. */
    int64_t settle_ms;
} ddp_elastic_options;

/* The facts of a step, filled by ddp_elastic_begin. */
typedef struct ddp_elastic_step {
    size_t struct_size;
    /* how many steps this job has applied; this is the next one. After a loss it may be smaller */
    int64_t step;
    int64_t roster; /* counts from 1 */
    int32_t rank;   /* in this roster: those who stay keep their order, those who join follow */
    int32_t world_size;
    /* 1: the roster is new since the last ddp_elastic_begin. Views may have moved */
    int32_t changed;
    int32_t joined; /* if changed: how many of the ranks were not in roster - 1 */
    int32_t left;   /* if changed: how many ranks of roster - 1 are gone */
    /* 1: this rank has announced that it leaves, and may now: call ddp_elastic_leave */
    int32_t leaving;
    int64_t fence; /* of the roster: greater than that of every roster before. See CHECKPOINTS */
} ddp_elastic_step;

/* Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_elastic_options_init_sized(ddp_elastic_options* options, size_t size);
static inline void ddp_elastic_options_init(ddp_elastic_options* options) {
    ddp_elastic_options_init_sized(options, sizeof *options);
}

/* Owned by the caller. Joins nothing yet: that is the first ddp_elastic_begin.
 * Errors: INVALID_ARGUMENT, UNAVAILABLE (the store).
 * Threads: any. Blocks: for the store, at most timeout_ms. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_create(const ddp_elastic_options* options, ddp_elastic** elastic,
                                      ddp_error** error);

/* If others still train and this rank has not called ddp_elastic_leave, they take it for dead and
 * go on at once. NULL is allowed. Free contexts and averagers first. Threads: any, once. Blocks:
 * while the store does not answer, at most 3 s: 1 s for the group, 1 s to tell the others, and 1 s
 * to close the store. Collective: no. Callbacks: no. */
DDP_API void ddp_elastic_free(ddp_elastic* elastic);

/* The group of this roster, for collectives of the program. Before the first ddp_elastic_begin:
 * this rank alone, for ddp_context_create. Borrowed: the pointer stays the same until
 * ddp_elastic_free. NULL for NULL. Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_group* ddp_elastic_group(ddp_elastic* elastic);

/* The context moves from roster to roster. It was made of ddp_elastic_group, is committed, and must
 * outlive the last call on the job but ddp_elastic_free. Every rank adds contexts with the same
 * parameters, in the same order, before the first ddp_elastic_begin. Errors: INVALID_STATE (later,
 * or before ddp_commit), UNSUPPORTED (values on a device). Threads: one. Blocks: no. Collective:
 * no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_add_context(ddp_elastic* elastic, ddp_context* context,
                                           ddp_error** error);

/* The ranks train apart, with the hook post_local_sgd for example, and the averager's outer
 * optimizer brings them together (averager.h). In each step call ddp_averager_step, and
 * ddp_elastic_commit right after it. Ranks join and leave right after an outer step. When a rank is
 * lost, all return to the last outer step, and ddp_elastic_begin says its number. With fragments
 * both take all parameters back to x, and a fragment on its way is dropped. One rank gives
 * the outer parameters, the outer momentum and what ddp_elastic_add_state names to all. Until the
 * first outer step there is nothing to return to: all go on with the values of one rank. A job has
 * at most one averager. Its context was added before, and it must outlive the last call on the job
 * but ddp_elastic_free. Errors: INVALID_STATE (after the first ddp_elastic_begin; its context was
 * not added; it has no outer optimizer), UNSUPPORTED (several periods, or a second averager).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_add_averager(ddp_elastic* elastic, ddp_averager* averager,
                                            ddp_error** error);

/* Memory that belongs to the state: of an optimizer, for example. It must stay where it is until
 * ddp_elastic_free. Every rank adds the same names and sizes, in the same order, before the first
 * ddp_elastic_begin. bytes: of CPU memory. Errors: INVALID_ARGUMENT, ALREADY_EXISTS, INVALID_STATE
 * (later). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_add_state(ddp_elastic* elastic, const char* name, void* memory,
                                         size_t bytes, ddp_error** error);

/* This rank has loaded the whole state after so many steps, from a checkpoint. When a job begins,
 * the ranks with the most steps give their state to the others. A rank that joins a job later gets
 * the state of the job, whatever it has loaded. Before the first ddp_elastic_begin. Errors:
 * INVALID_ARGUMENT (negative), INVALID_STATE (later). Threads: one. Blocks: no. Collective: no.
 * Callbacks: no. */
DDP_API ddp_status ddp_elastic_set_step(ddp_elastic* elastic, int64_t step, ddp_error** error);

/* Begins a step. If the group is whole and nobody comes or goes, this costs no communication.
 * Otherwise it waits until the next roster begins, with the state of the job on every rank. It also
 * does so if the last step had its mean gradients and was not committed, because this rank may have
 * applied it while others have not.
 *
 * Errors: INVALID_STATE (a step of a context is under way, and no rank was lost; the step before
 * had mean gradients and was not committed, and no rank has a state that is known: begin again from
 * a checkpoint), RANK_FAILED (the others have gone on without this rank, because it did not answer
 * in time or was cut off from the store: free the job, and create it again to get their state),
 * UNAVAILABLE (the store cannot be reached: the same, until that succeeds), TIMEOUT (fewer than
 * min_world ranks, or the store does not answer), MISMATCH (another model or other states than the
 * others have), INTERRUPTED, and the group's error if it is not one after which others can go on.
 * Threads: one. Blocks: for the others: settle_ms, and the group's timeout for each attempt; a rank
 * for which there is no room, until there is. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_elastic_begin(ddp_elastic* elastic, ddp_elastic_step* step,
                                     ddp_error** error);

/* Says that this rank has applied the step: once after each ddp_elastic_begin, when every context
 * has been finalized and the optimizer has run. If all ranks leave a step out (NONFINITE,
 * ddp_step_discard), commit it without the optimizer. A rank asks the store first if the others may
 * have given it up: because it stood still for a fourth of settle_ms, or because the store has not
 * answered for a while. If the store does not confirm that this rank is a member, the call fails.
 * Then this rank has applied the step, but the others may go on without it: write no checkpoint,
 * free the error, and call ddp_elastic_begin. So two rosters never commit at the same time, even if
 * the network is split.
 *
 * Errors: INVALID_STATE (no step has begun since the last ddp_elastic_commit; during a step of a
 * context), RANK_FAILED (the others have gone on without this rank, or may have), UNAVAILABLE,
 * TIMEOUT (the store does not confirm it), INTERRUPTED. Threads: one. Blocks: only if it asks the
 * store, at most timeout_ms. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_commit(ddp_elastic* elastic, ddp_error** error);

/* Asks the store whether this rank is a member of the newest roster. Call it before an action that
 * only one roster may take, such as replacing a checkpoint. DDP_OK: this rank was a member at some
 * moment during the call, which says nothing about the time after it. Errors: RANK_FAILED (the
 * others have gone on without this rank, or may have), UNAVAILABLE, TIMEOUT (the store does not
 * confirm it), INVALID_STATE (before the first ddp_elastic_begin, or after ddp_elastic_leave),
 * INTERRUPTED. Threads: one. Blocks: for the store, at most settle_ms and timeout_ms. Collective:
 * no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_confirm_member(ddp_elastic* elastic, ddp_error** error);

/* Where the state of a step is kept. */
typedef int32_t ddp_keep;
enum {
    /* In the memory of this rank, and in that of a neighbour: one other rank, or two, on another
     * host unless a host has more than half of the ranks. */
    DDP_KEEP_AT_NEIGHBOUR = 0,
    /* Nowhere: the program has saved it (ddp_shard_save), and loads it after a change of the
     * roster. Only the number of the step, buffers and added states are kept. */
    DDP_KEEP_IN_CHECKPOINT = 1
};

/* Keeps what the arrays hold that ddp_shard_array has named (shard_state.h), the values of this
 * rank's pieces, buffers and added states: the state after `step` steps. From then on a change of
 * the roster takes the job back to this step. The state of the communication hook does not go back.
 * Ranks name arrays as for ddp_shard_save, without values: all ranks together name the elements of
 * each parameter's state from 0 on, each once.
 *
 * Called after ddp_elastic_commit, with the number of steps that the job has applied. Or right
 * after ddp_elastic_begin, if the roster has changed and ddp_elastic_recall_shards has found
 * nothing, with the step that the program has loaded, or 0: the step that has begun is then this
 * one. No step begins before that.
 *
 * With DDP_KEEP_AT_NEIGHBOUR each rank sends its arrays and values once, to one rank, or to two. It
 * holds two steps, each with its own arrays and its neighbour's: 4 times their size, and 6 times on
 * three ranks of an odd world. All of it survives the loss of any one rank, and of several of which
 * no two are neighbours, until ddp_elastic_recall_shards has returned. After an error the step
 * before is still kept: call ddp_elastic_begin if the group is broken.
 *
 * Errors: MISMATCH (ranks keep different steps, or not equally many; elements twice, or missing;
 * replicated elements differ), INVALID_ARGUMENT (step is not what the job has applied; an array is
 * called "value"), INVALID_STATE (a step has begun, or unsynced ones wait; ranks have different
 * values; the context is not the job's), OUT_OF_MEMORY, or what broke the group. Threads: one.
 * Blocks: for all ranks, at most the group's timeout for each exchange. Collective: yes. Callbacks:
 * no. */
DDP_API ddp_status ddp_elastic_keep_shards(ddp_elastic* elastic, ddp_context* context, int64_t step,
                                           ddp_keep where, ddp_error** error);

/* After a change of the roster: fills the arrays that ddp_shard_array has named, with what the
 * ranks have kept of step ddp_elastic_step.step, and all values on every rank. Ranks name the
 * arrays of their new pieces. Then it keeps them as ddp_elastic_keep_shards does. *found: 1, or 0
 * if nothing was kept in memory: the job is new, or the step is in a checkpoint
 * (DDP_KEEP_IN_CHECKPOINT); arrays and values are as before then. Every rank receives all arrays
 * and values once, in pieces of 16 MiB.
 *
 * Errors: INVALID_STATE (neighbours were lost together: names elements that no rank has; the roster
 * is the same since the last call), MISMATCH (an array was kept with another dtype, or not at all),
 * and those of ddp_elastic_keep_shards. After an error arrays and values may be old, new or both.
 * Threads: one. Blocks: as ddp_elastic_keep_shards. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_elastic_recall_shards(ddp_elastic* elastic, ddp_context* context,
                                             int32_t* found, ddp_error** error);

/* Announces that this rank will leave, when a notice of preemption comes, for example. Go on with
 * steps until ddp_elastic_begin says `leaving`: mostly in the third step from now, with an averager
 * after an outer step, with unsynced steps after a synced one, with shards after
 * ddp_elastic_keep_shards. So no step is lost, here or elsewhere. Errors: INVALID_STATE (before the
 * first ddp_elastic_begin), or the store's. Threads: one. Blocks: for the store. Collective: no.
 * Callbacks: no. */
DDP_API ddp_status ddp_elastic_announce_leave(ddp_elastic* elastic, ddp_error** error);

/* Leaves between two steps. The others go on at once. If it was not announced, they may have to do
 * a step again. Afterwards ddp_elastic_group is this rank alone again, and the job can only be
 * freed. Errors: INVALID_STATE (during a step of a context), or the store's. Threads: one. Blocks:
 * for the store, and 1 s for the group. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_elastic_leave(ddp_elastic* elastic, ddp_error** error);

/* The share of a rank: of samples 0 to count - 1 those from *begin up to *end, which is not
 * included. Shares lie in the order of ranks, differ by at most one sample, and together are all
 * samples. Some are empty if there are more ranks than samples. For the mean over the samples of
 * all ranks use DDP_REDUCTION_WEIGHTED_MEAN, with the size of the share as weight. Errors:
 * INVALID_ARGUMENT (count is negative, or rank is not in the world). Threads: any. Blocks: no.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_shard_range(int64_t count, int32_t rank, int32_t world_size, int64_t* begin,
                                   int64_t* end, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_ELASTIC_H */
