/* shard.h: each rank updates a share of the parameters, so the optimizer's state and work are
 * divided by the world size (ZeRO stage 1, Rajbhandari et al. 2020).
 *
 *     options.flags = DDP_CONTEXT_SHARD;  ddp_context_create; ddp_register_param; ddp_commit
 *     for i < ddp_piece_count(ctx):  ddp_piece_get(ctx, i, &piece, &error);  make its state
 *     each step:
 *         for each layer:  ddp_wait_value(ctx, param, &error);  forward
 *         backward; ddp_grad_ready(ctx, param, &error);
 *         ddp_finalize(ctx, &error);       each rank has the mean of its own pieces only
 *         update the values of the pieces, from piece.gradient
 *         ddp_publish(ctx, &error);        the new values travel to the other ranks
 *
 * A PIECE is a range of elements of one parameter that this rank owns. By default each bucket is
 * cut into a range for each rank, of any shapes and any world. Instead one rank may own a whole
 * parameter, for optimizers that need whole matrices, and all ranks a small one (ddp_set_owner).
 * The buckets and the pieces stay as ddp_commit made them, so that the optimizer's state stays
 * where it is: buckets are not rebuilt. A plan adopted before ddp_commit (plan.h) gives another
 * order. ddp_context_set_group makes new pieces, after values that are under way have arrived. If
 * the old group broke while ranks had different values, no step begins until every rank has loaded
 * a checkpoint (ddp_shard_load), or has called ddp_publish to go on with each owner's values.
 *
 * After ddp_finalize a gradient of which this rank owns no piece, or the rest of one, has no
 * meaning. A hook sees whole buckets. Values travel through the memory of the buckets: gradients
 * that live there (views) are zero once their parameter has its new value. After each synced step
 * every rank calls ddp_publish, also where nothing has changed, before the first gradient of the
 * next step.
 *
 * On devices ddp_publish reads the values in the order of the stream of ddp_set_stream.
 *
 * With DDP_CONTEXT_JOIN updates must run in the step (ddp_optimizer_in_step, ddp_set_update), since
 * a rank in ddp_join runs them too.
 *
 * In an elastic job state moves with its elements (elastic.h, SHARDS).
 *
 * Not with sparse, factored and in-place parameters, hooks that do not reduce over all ranks, and
 * in graphs of devices.
 *
 * EXPERIMENTAL: pieces may come to be cut otherwise.
 */
#ifndef DDP_SHARD_H
#define DDP_SHARD_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

typedef int32_t ddp_owner;
enum {
    DDP_OWNER_ELEMENTS = 0,  /* each rank owns a range of its elements */
    DDP_OWNER_WHOLE = 1,     /* one rank owns all of it */
    DDP_OWNER_REPLICATED = 2 /* every rank owns all of it; its value is not sent */
};

/* Says who is to own a parameter, before ddp_commit and alike on all ranks. Initially
 * DDP_OWNER_ELEMENTS. cost: with DDP_OWNER_WHOLE, of an update, beside those of other such
 * parameters: the most expensive goes first, to the rank that has least. 0: the number of elements.
 * The owner of a whole parameter depends on the parameters, the costs and the world only. Errors:
 * INVALID_ARGUMENT, INVALID_STATE (after ddp_commit; no DDP_CONTEXT_SHARD). Threads: one. Blocks:
 * no. Collective: no, but compared by ddp_commit. Callbacks: no. */
DDP_API ddp_status ddp_set_owner(ddp_context* context, ddp_param param, ddp_owner owner,
                                 double cost, ddp_error** error);

/* Elements of a parameter that this rank owns. */
typedef struct ddp_piece {
    size_t struct_size;
    ddp_param param;
    int32_t replicated; /* 1: all ranks own it */
    int64_t first;      /* elements of the parameter before it */
    int64_t count;      /* elements, at least 1 */
    void* value;        /* of the first element, in desc.data; NULL if there is none */
    void*
        gradient; /* of the first element, in desc.grad or the view: the mean, after ddp_finalize */
} ddp_piece;

/* The number of this rank's pieces, at most one for each parameter; they change with
 * ddp_layout_generation. 0 without DDP_CONTEXT_SHARD, -1 for NULL or before ddp_commit. Threads:
 * any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_piece_count(const ddp_context* context);

/* Piece `index`, in the order of parameters. The caller sets piece->struct_size. Errors:
 * INVALID_ARGUMENT. Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_piece_get(ddp_context* context, int32_t index, ddp_piece* piece,
                                 ddp_error** error);

/* Sends this rank's pieces of all values to the other ranks, and starts to receive theirs: bucket
 * by bucket, in the order of registration, as forward passes go. Gradients that live in buckets are
 * gone. Also without an optimizer, between steps: after values were loaded piece by piece. Errors:
 * INVALID_STATE (during a step; gradients of unsynced steps wait; no DDP_CONTEXT_SHARD), or what
 * broke the group. Threads: one. Blocks: for values that an earlier call sent. Collective: yes.
 * Callbacks: no. */
DDP_API ddp_status ddp_publish(ddp_context* context, ddp_error** error);

/* An optimizer that updates the pieces of one bucket: from piece->gradient to piece->value. libddp
 * calls it once for each bucket of a synced step that a rank uses, as soon as this rank's gradients
 * there are final and while they are in the processor's cache, and sends the values when it
 * returns: ddp_publish is not needed. It runs on any thread inside a call of a step, or on
 * libddp's own, while the backward pass goes on, for one bucket at a time of each group in a round
 * robin. So a gradient may be announced only when the backward pass no longer reads the value. The
 * values of other ranks are written likewise, until ddp_wait_value has returned for them or the
 * context is freed: free it before their memory.
 * Pieces of frozen and skipped parameters are left out. piece->gradient is libddp's until the
 * function returns. To fail, it returns an error status, and may set *error (libddp takes
 * ownership): the context breaks on every rank. */
typedef ddp_status (*ddp_update_fn)(void* user_data, const ddp_piece* const* pieces, size_t count,
                                    ddp_error** error);

/* Installs the function. fn NULL: none. destroy (may be NULL) is called exactly once when user_data
 * is no longer needed, but not if this call fails. All ranks install one, or none. Where a step
 * fails after a call of it, some parameters have new values and others old ones: start again from a
 * checkpoint. ddp_step_discard is refused. Errors: INVALID_STATE (during a step; no
 * DDP_CONTEXT_SHARD), UNSUPPORTED (with FIND_UNUSED, STATIC_GRAPH, SKIP_NONFINITE, CHECK,
 * verify_interval and norms (norm.h), which agree or compare at the end of a step; with parameters
 * on devices). Threads: one. Blocks: no. Collective: no, but compared before the next update.
 * Callbacks: no. */
DDP_API ddp_status ddp_set_update(ddp_context* context, ddp_update_fn fn, void* user_data,
                                  void (*destroy)(void* user_data), ddp_error** error);

/* Waits until the parameter, and all others of its bucket, have the values of the last ddp_publish
 * on this rank. At once if nothing was published. A gradient whose parameter nobody has waited for
 * is INVALID_STATE; the first gradient of the next step waits for the rest. Errors:
 * INVALID_ARGUMENT, or what broke the group: parameters whose wait has not returned DDP_OK may then
 * be old or new. Threads: any. Blocks: for all ranks, at most the group's timeout a bucket.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_wait_value(ddp_context* context, ddp_param param, ddp_error** error);

/* ddp_wait_value that does not wait for the device: what the program enqueues on `stream` (of the
 * parameter's device) afterwards sees the new value. For a CPU parameter it is ddp_wait_value, and
 * `stream` is ignored. Errors and facts as ddp_wait_value. */
DDP_API ddp_status ddp_wait_value_on(ddp_context* context, ddp_param param, void* stream,
                                     ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_SHARD_H */
