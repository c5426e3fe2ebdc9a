/* context.h: a model's parameters and the averaging of their gradients: DistributedDataParallel as
 * a C object.
 *
 *     ddp_context_create(group, NULL, &ctx, &error);
 *     for each parameter:  ddp_register_param(ctx, &desc, &param, &error);
 *     ddp_commit(ctx, &error);
 *     each step:
 *         ddp_step_begin(ctx, &error);     optional, unless JOIN or WEIGHTED_MEAN
 *         forward; backward, and as soon as a gradient is complete:  ddp_grad_ready(ctx, param, &error);
 *         ddp_finalize(ctx, &error);       now every gradient is the mean over all ranks
 *         optimizer
 *
 * A dense gradient lives in one of two places:
 *   copy:  at desc.grad. ddp_grad_ready copies it into a bucket, ddp_finalize copies the result back.
 *   view:  in its bucket, at ddp_grad_view, if desc.grad is NULL. Nothing is copied.
 * libddp does not zero gradients between steps. The plan says which gradients form a bucket. libddp
 * reduces buckets in the background, in one order on all ranks. A bucket starts when all of its
 * gradients are announced (ddp_grad_ready, ddp_put) and the buckets before it have started.
 *
 * A STEP lasts from its first announcement to the end of ddp_finalize or ddp_step_discard. A synced
 * step communicates (ddp_set_sync). A context breaks when its group breaks, or when ranks differ in
 * a step. The calls of a step then return the error that broke it, until ddp_context_set_group.
 * Before ddp_commit, calls that need it return INVALID_STATE. Details: docs/steps.md.
 */
#ifndef DDP_CONTEXT_H
#define DDP_CONTEXT_H

#include "types.h"

DDP_EXTERN_C_BEGIN

typedef int32_t ddp_reduction;
enum {
    DDP_REDUCTION_MEAN = 0, /* the sum over ranks divided by the world size */
    DDP_REDUCTION_SUM = 1,
    DDP_REDUCTION_WEIGHTED_MEAN = 2 /* freeze.h. Not for integers */
};

enum {
    /* Keep the first plan. Otherwise libddp rebuilds it in rank 0's gradient order. */
    DDP_CONTEXT_NO_REBUILD = 1u << 0,
    /* ddp_commit does not send rank 0's values: the program made them equal. */
    DDP_CONTEXT_NO_INITIAL_BROADCAST = 1u << 1,
    /* ddp_step_begin does not send buffers. */
    DDP_CONTEXT_NO_BUFFER_BROADCAST = 1u << 2,
    /* participation.h: */
    /* what is not announced before ddp_finalize is unused, not missing */
    DDP_CONTEXT_FIND_UNUSED = 1u << 3,
    DDP_CONTEXT_STATIC_GRAPH = 1u << 4, /* every step uses what the first synced step used */
    /* with either above: gradients unused on this rank are kept */
    DDP_CONTEXT_KEEP_LOCAL_UNUSED = 1u << 5,
    DDP_CONTEXT_SKIP_UNUSED_BUCKETS = 1u << 6, /* with FIND_UNUSED: agree on each bucket first */
    DDP_CONTEXT_JOIN = 1u << 7,                /* ranks may run out of inputs before others */
    /* with JOIN: mean over ranks with inputs; not for sums */
    DDP_CONTEXT_DIVIDE_BY_PRESENT = 1u << 8,
    DDP_CONTEXT_STOP_AT_FIRST_JOIN = 1u << 9, /* with JOIN: UNEVEN_INPUTS once a rank has none */
    /* Rebuild in the mean order of all ranks. */
    DDP_CONTEXT_CONSENSUS_ORDER = 1u << 10,
    /* Find silent mistakes: docs/check.md. */
    DDP_CONTEXT_CHECK = 1u << 11,
    /* check.h: */
    DDP_CONTEXT_REFUSE_NONFINITE = 1u << 12,
    DDP_CONTEXT_SKIP_NONFINITE = 1u << 13,
    DDP_CONTEXT_VERIFY_BUFFERS = 1u << 14,
    /* Find the fastest bucket cap in the first steps: docs/steps.md. Not with NO_REBUILD or
     * bucket_caps. */
    DDP_CONTEXT_AUTOTUNE = 1u << 15,
    /* With FIND_UNUSED or STATIC_GRAPH: the program adds to gradients. participation.h. Not for
     * sums */
    DDP_CONTEXT_ACCUMULATE = 1u << 16,
    DDP_CONTEXT_SHARD = 1u << 17, /* each rank updates a share of the parameters: shard.h */
    DDP_CONTEXT_VOTES = 1u << 18  /* bits of each rank travel with each step: vote.h */
};

/* All ranks must give the same values. */
typedef struct ddp_context_options {
    size_t struct_size;
    /* A bucket closes once it holds this many bytes of gradients. 0: 26,214,400, or 1,048,576 on
     * "shm". */
    uint64_t bucket_cap_bytes;
    /* The same for the first bucket of each (dtype, device). 0: 1,048,576, or bucket_cap_bytes if
     * smaller. */
    uint64_t first_bucket_cap_bytes;
    ddp_reduction reduction;
    uint32_t flags;
    /* If bucket_cap_count > 0, replaces both caps above: one per bucket, in order; the last
     * repeats. Copied. */
    const uint64_t* bucket_caps;
    uint64_t bucket_cap_count;
    /* Synced steps between rebuilds. 0: only after the first. plan.h */
    int64_t rebuild_interval;
    /* with CHECK: synced steps between comparisons of values. 0: 10. -1: never */
    int64_t check_interval;
    int64_t verify_interval; /* check.h */
} ddp_context_options;

enum {
    /* neither value nor gradient is sent; announcing it does nothing */
    DDP_PARAM_IGNORED = 1u << 0,
    DDP_PARAM_DELAYED = 1u << 1,  /* reduced after all others, in buckets of its own */
    DDP_PARAM_SPARSE = 1u << 2,   /* sparse.h; `grad` must be NULL, ndim at least 1 */
    DDP_PARAM_FACTORED = 1u << 3, /* sparse.h; F32 or F64, ndim at least 1 */
    DDP_PARAM_IN_PLACE = 1u << 4  /* reduced at `grad`: in_place.h */
};

typedef struct ddp_param_desc {
    size_t struct_size;
    const char* name;     /* 1 to 1,024 bytes, unique in the context, the same on every rank */
    const int64_t* shape; /* ndim extents >= 0, row-major; copied; NULL when ndim is 0 */
    int32_t ndim;         /* 0 (a scalar) to 16 */
    ddp_dtype dtype;      /* of the value */
    ddp_device device;
    /* The value: contiguous, aligned to its element (at most 8 bytes), outlives the context. NULL:
     * never sent. */
    void* data;
    void* grad;     /* the gradient (copy): as `data`, shared with no other gradient. NULL: view */
    uint32_t flags; /* 0 for a buffer */
    uint32_t uses;  /* announcements a step: one for each layer that shares it. 0 means 1 */
    /* The type of the gradient: of `grad`, views, rows, factors, buckets, sums and results. 0:
     * dtype. It may differ from a floating-point dtype: F32 gradients of BF16 values, summed in
     * F32. */
    ddp_dtype grad_dtype;
    uint32_t reserved0;
} ddp_param_desc;

/* SET-UP.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

DDP_API void ddp_context_options_init_sized(ddp_context_options* options, size_t size);
static inline void ddp_context_options_init(ddp_context_options* options) {
    ddp_context_options_init_sized(options, sizeof *options);
}

/* Makes a context on a group, which it keeps alive. options NULL: defaults. All ranks make the
 * contexts of a group in the same order: the group numbers them, and ranks compare the number
 * before each collective of a context. Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options,
                                      ddp_context** context, ddp_error** error);

/* Frees a context and its views. The group breaks with ABORTED if reductions under way take longer
 * than 1 s, or if a synced step lacks gradients of this rank. Threads: any, once. Blocks: at most 4
 * s. Collective: no. Callbacks: no. */
DDP_API void ddp_context_free(ddp_context* context);

/* Fills `desc` with zeros, F32 and the CPU. */
DDP_API void ddp_param_desc_init_sized(ddp_param_desc* desc, size_t size);
static inline void ddp_param_desc_init(ddp_param_desc* desc) {
    ddp_param_desc_init_sized(desc, sizeof *desc);
}

/* Adds a parameter. Register in forward order: the first plan is the reverse. Errors:
 * ALREADY_EXISTS (name, or memory of another gradient), INVALID_STATE (after ddp_commit),
 * UNSUPPORTED (device). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_register_param(ddp_context* context, const ddp_param_desc* desc,
                                      ddp_param* param, ddp_error** error);

/* Adds a buffer: untrained state, such as running means. `grad` must be NULL, `data` must not.
 * Errors and facts as ddp_register_param. */
DDP_API ddp_status ddp_register_buffer(ddp_context* context, const ddp_param_desc* desc,
                                       ddp_error** error);

/* Ends registration: ranks compare parameters, buffers and options, rank 0 sends its values, and
 * libddp makes buckets. Errors: MISMATCH (names the first difference; context and group stay
 * usable, unless a rank ends), INVALID_STATE (committed already, no parameters), UNSUPPORTED
 * (integers with WEIGHTED_MEAN or DIVIDE_BY_PRESENT), INVALID_ARGUMENT (a plan of plan.h). Threads:
 * one. Blocks: for all ranks, each exchange at most the group's timeout. Collective: yes.
 * Callbacks: no. */
DDP_API ddp_status ddp_commit(ddp_context* context, ddp_error** error);

/* The gradient's place in its bucket: aligned to 64 bytes, zero at first, valid until
 * ddp_layout_generation changes. Errors: INVALID_ARGUMENT (a sparse or ignored parameter). */
DDP_API ddp_status ddp_grad_view(ddp_context* context, ddp_param param, void** view,
                                 ddp_error** error);
/* Grows when views and their contents move: in ddp_commit, ddp_step_begin, ddp_context_set_group,
 * ddp_join (participation.h). NULL: -1. */
DDP_API int64_t ddp_layout_generation(const ddp_context* context);

/* STEPS. Threads: any, several at once for different parameters. Blocks: to start a bucket.
 * Collective: no. Callbacks: no. */

/* Prepares the next step: rebuilds buckets if due, and after a synced step sends rank 0's buffers
 * (JOIN: those of the lowest rank with inputs). JOIN or WEIGHTED_MEAN needs it. Otherwise all ranks
 * call it or none; if none, libddp keeps the first plan, and only ddp_commit sends buffers. Errors:
 * INVALID_STATE (in a step), INVALID_ARGUMENT (weights that sum to 0), UNEVEN_INPUTS, MISMATCH,
 * CALLBACK (the buffer hook's). Threads: one. Blocks: for all ranks if there is something to
 * exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_step_begin(ddp_context* context, ddp_error** error);

/* Announces that this step's gradient is complete. Leave the gradient alone until ddp_finalize, or
 * ddp_wait_param for it (overlap.h), returns. Lock-free, unless it starts a bucket: that runs the
 * hook, takes a lock, and on "shm" may wait 1 ms and reduce the bucket. Errors: INVALID_ARGUMENT (a
 * sparse parameter), INVALID_STATE (more than `uses` in a step; during ddp_finalize), MISMATCH
 * (frozen, skipped or not in the static graph: participation.h). */
DDP_API ddp_status ddp_grad_ready(ddp_context* context, ddp_param param, ddp_error** error);

enum {
    /* Add to what this parameter has accumulated since the last synced step. Otherwise replace it.
     */
    DDP_PUT_ADD = 1u << 0
};

/* Copies a gradient to its place (desc.grad or view) and announces it. gradient: contiguous CPU
 * memory of the parameter's shape, in the gradient's type, not used after the call. NULL: only for
 * a parameter without elements. Without DDP_PUT_ADD, gradient may be the place itself. An error
 * copies nothing. Errors: as ddp_grad_ready; INVALID_ARGUMENT (device memory, other overlap with
 * the place); UNSUPPORTED (device parameter: ddp_put_on of device.h). */
DDP_API ddp_status ddp_put(ddp_context* context, ddp_param param, const void* gradient,
                           uint32_t flags, ddp_error** error);

/* Ends the backward pass: waits until every bucket is reduced, and (copy) writes gradients back.
 * Every gradient must have been announced since the last synced step, or may be unused
 * (participation.h). Otherwise the context breaks with MISSING_GRADIENT on every rank. Errors:
 * MISSING_GRADIENT, NONFINITE, MISMATCH, RANK_FAILED, TIMEOUT, ABORTED, INVALID_STATE, CALLBACK or
 * a hook's. Threads: one. Blocks: for all ranks, the group's timeout for each bucket. Collective:
 * if synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize(ddp_context* context, ddp_error** error);

/* no_sync: with sync 0 the following steps do not communicate, and the next synced step reduces the
 * sums. libddp adds up sparse rows, factors, and gradients put with DDP_PUT_ADD; the program adds
 * up the rest. In an unsynced step it counts from the next. Errors: INVALID_STATE (a synced step
 * has begun). Threads: one. Blocks: no. Collective: no, but alike on all ranks. Callbacks: no. */
DDP_API ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error);

/* Instead of ddp_finalize: ends a step that went wrong, and forgets unsynced steps. Copied
 * gradients stay; views that took part in a synced step are zero. If not all ranks discard,
 * contexts break with MISMATCH in the next step. Errors and facts as ddp_finalize, without
 * MISSING_GRADIENT; UNSUPPORTED if a rank is in ddp_join. */
DDP_API ddp_status ddp_step_discard(ddp_context* context, ddp_error** error);

/* EXPERT.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

/* As ddp_group_abort, for the context and its group. */
DDP_API ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error);

/* Keeps today's views readable and writable until ddp_layout_free, even after views move or the
 * context is freed. libddp does not read old views. Threads: one. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API ddp_status ddp_layout_hold(ddp_context* context, ddp_layout** layout, ddp_error** error);
DDP_API void ddp_layout_free(ddp_layout* layout);

/* Moves the context to another group, of any size, between steps or after it broke. Ranks compare
 * parameters, which stay. All get rank 0's bucket plan. A step under way is forgotten. Values are
 * not sent: use ddp_broadcast. Errors: INVALID_STATE (in a step, unless broken), MISMATCH (the old
 * group stays). Threads: one. Blocks: as ddp_commit, plus 1 s for the old group. Collective: yes,
 * in the new group. Callbacks: no. */
DDP_API ddp_status ddp_context_set_group(ddp_context* context, ddp_group* group, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_CONTEXT_H */
