/* context.h: a model's parameters and the averaging of their gradients: DistributedDataParallel as a C object.
 *
 *     ddp_context_create(group, NULL, &ctx, &error);
 *     for each parameter:  ddp_register_param(ctx, &desc, &param, &error);
 *     ddp_commit(ctx, &error);
 *     each step:
 *         ddp_step_begin(ctx, &error);     optional
 *         forward; backward, and as soon as a gradient is complete:  ddp_grad_ready(ctx, param, &error);
 *         ddp_finalize(ctx, &error);       now every gradient is the mean over all ranks
 *         optimizer
 *
 * A gradient lives in one of two places:
 *   copy   desc.grad. ddp_grad_ready copies it into a bucket, ddp_finalize copies the result back.
 *   view   in its bucket, at ddp_grad_view, if desc.grad is NULL. Nothing is copied, and libddp never zeroes it.
 * libddp reduces a bucket in the background as soon as its gradients are ready on this rank, in one order on all ranks.
 *
 * A STEP lies between two calls of ddp_finalize. A context breaks with its group or when ranks disagree. Calls that
 * begin, make or end a step then return that error, which error lists omit, until ddp_context_set_group. Calls that
 * need ddp_commit return INVALID_STATE before it. docs/steps.md explains the rest.
 */
#ifndef DDP_CONTEXT_H
#define DDP_CONTEXT_H

#include "types.h"

DDP_EXTERN_C_BEGIN

typedef int32_t ddp_reduction;
enum {
    DDP_REDUCTION_MEAN = 0, /* the sum over ranks divided by the world size */
    DDP_REDUCTION_SUM = 1,
    /* The sum of weight * gradient divided by the sum of weights (ddp_set_weight). Not for integers. */
    DDP_REDUCTION_WEIGHTED_MEAN = 2
};

enum {
    /* Keep the first plan: do not follow rank 0's ready order after the first step. */
    DDP_CONTEXT_NO_REBUILD = 1u << 0,
    /* ddp_commit does not send rank 0's values: the caller made all equal. */
    DDP_CONTEXT_NO_INITIAL_BROADCAST = 1u << 1,
    /* ddp_step_begin does not send rank 0's buffers. */
    DDP_CONTEXT_NO_BUFFER_BROADCAST = 1u << 2,
    /* A gradient that is not announced by ddp_finalize is unused, not missing: participation.h. */
    DDP_CONTEXT_FIND_UNUSED = 1u << 3,
    /* The first synced step finds out which gradients all steps use. */
    DDP_CONTEXT_STATIC_GRAPH = 1u << 4,
    /* A gradient that only other ranks used stays as it is. */
    DDP_CONTEXT_KEEP_LOCAL_UNUSED = 1u << 5,
    /* With FIND_UNUSED: do not send unused buckets, at one small message each. */
    DDP_CONTEXT_SKIP_UNUSED_BUCKETS = 1u << 6,
    /* Ranks may run out of inputs before others: ddp_join. */
    DDP_CONTEXT_JOIN = 1u << 7,
    /* With JOIN: the mean is over ranks that still have inputs. Not with DDP_REDUCTION_SUM. */
    DDP_CONTEXT_DIVIDE_BY_PRESENT = 1u << 8,
    /* With JOIN: UNEVEN_INPUTS on all ranks as soon as one has no more inputs. */
    DDP_CONTEXT_STOP_AT_FIRST_JOIN = 1u << 9,
    /* Rebuild buckets by the mean ready order of all ranks. */
    DDP_CONTEXT_CONSENSUS_ORDER = 1u << 10,
    /* Find silent mistakes, as DDP_DEBUG=check does: docs/check.md. */
    DDP_CONTEXT_CHECK = 1u << 11
};

/* All ranks must give the same values. */
typedef struct ddp_context_options {
    size_t struct_size;
    /* A bucket closes once it holds this many bytes of gradients. 0: 26,214,400, or 1,048,576 on "shm". */
    uint64_t bucket_cap_bytes;
    /* The same for the first bucket of each (dtype, device). 0: 1,048,576, or bucket_cap_bytes if smaller. */
    uint64_t first_bucket_cap_bytes;
    ddp_reduction reduction;
    uint32_t flags;
    /* Instead of both: caps of the first, second, ... bucket of each (dtype, device); the last repeats. Copied, or
     * NULL. */
    const uint64_t* bucket_caps;
    uint64_t bucket_cap_count;
    /* Every so many synced steps record the ready order and rebuild by it. 0: after the first one, and on
     * ddp_request_rebuild. */
    int64_t rebuild_interval;
    int64_t check_interval; /* with CHECK: synced steps between comparisons of values. 0: 10. -1: never */
} ddp_context_options;

enum {
    DDP_PARAM_IGNORED = 1u << 0, /* neither sent nor reduced; announcing it does nothing */
    DDP_PARAM_DELAYED = 1u << 1, /* reduced after all others, in buckets of its own */
    DDP_PARAM_SPARSE = 1u << 2,  /* for ddp_grad_ready_sparse; `grad` must be NULL, ndim at least 1 */
    DDP_PARAM_FACTORED = 1u << 3 /* for ddp_grad_ready_factors; F32 or F64, ndim at least 1 */
};

typedef struct ddp_param_desc {
    size_t struct_size;
    const char* name;     /* 1 to 1,024 bytes, unique in the context, the same on every rank */
    const int64_t* shape; /* ndim extents >= 0, row-major; copied; NULL when ndim is 0 */
    int32_t ndim;         /* 0 (a scalar) to 16 */
    ddp_dtype dtype;
    ddp_device device;
    void* data;     /* the value: contiguous, outlives the context; ddp_commit writes rank 0's. NULL: not sent */
    void* grad;     /* the gradient (copy): likewise, shares no byte with another. NULL: view */
    uint32_t flags; /* 0 for a buffer */
    uint32_t uses;  /* announcements in each step, one for each layer that shares it. 0: 1 */
} ddp_param_desc;

/* SET-UP.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

DDP_API void ddp_context_options_init(ddp_context_options* options);

/* Makes a context on a group, which it keeps alive. options: NULL takes the defaults.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options, ddp_context** context,
                                      ddp_error** error);

/* Frees a context and its views. Ends work under way, or aborts it if the group is broken. In a synced step that lacks
 * gradients it breaks the group: ABORTED, which names this rank.
 * Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_context_free(ddp_context* context);

/* Fills `desc` with zeros, F32 and the CPU. */
DDP_API void ddp_param_desc_init(ddp_param_desc* desc);

/* Adds a parameter. Register in forward order: the first plan of buckets is the reverse.
 * Errors: ALREADY_EXISTS (name, or memory of another gradient), INVALID_STATE (after ddp_commit), UNSUPPORTED (device).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_register_param(ddp_context* context, const ddp_param_desc* desc, ddp_param* param,
                                      ddp_error** error);

/* Adds a buffer: untrained state, such as running means. `grad` must be NULL, `data` must not. ddp_commit and
 * ddp_step_begin send rank 0's values to every rank. Errors and facts as ddp_register_param. */
DDP_API ddp_status ddp_register_buffer(ddp_context* context, const ddp_param_desc* desc, ddp_error** error);

/* Ends registration: ranks compare parameters, buffers and options, rank 0 sends its values, buckets are made.
 * Errors: MISMATCH (names the first difference and the ranks; context and group stay usable), INVALID_STATE (committed
 * already, no parameters), UNSUPPORTED (integers where the mean needs floating point), INVALID_ARGUMENT (the plan of
 * ddp_plan_adopt).
 * Threads: one. Blocks: for all ranks, at most the group's timeout an exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_commit(ddp_context* context, ddp_error** error);

/* The gradient's place in its bucket, for copy and view, but not sparse or ignored: aligned to 64 bytes, zero until
 * written, valid until ddp_layout_generation changes. */
DDP_API ddp_status ddp_grad_view(ddp_context* context, ddp_param param, void** view, ddp_error** error);
/* Grows when views move with their bytes: in ddp_commit, ddp_step_begin, ddp_join, ddp_context_set_group. NULL: -1. */
DDP_API int64_t ddp_layout_generation(const ddp_context* context);

/* STEPS.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. */

/* Starts a step, before the forward pass; optional except with JOIN or WEIGHTED_MEAN. Rebuilds buckets when due, first
 * after one synced step. After a synced step sends the buffers of the lowest rank with inputs.
 * Errors: INVALID_STATE (in a step), INVALID_ARGUMENT (weights that sum to 0), UNEVEN_INPUTS, MISMATCH, CALLBACK (the
 * buffer hook's).
 * Threads: one. Blocks: for all ranks if there is something to exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_step_begin(ddp_context* context, ddp_error** error);

/* Announces that this step's gradient is complete. The last one of a bucket starts its reduction. Leave the gradient
 * alone until ddp_finalize returns. A gradient that is refused neither breaks the context nor begins a step. Lock-free.
 * Errors: INVALID_ARGUMENT (also sparse), INVALID_STATE (twice in a step; during ddp_finalize), MISMATCH (frozen,
 * skipped, not in the static graph), a hook's. */
DDP_API ddp_status ddp_grad_ready(ddp_context* context, ddp_param param, ddp_error** error);

enum {
    /* Add to what was announced since the last synced step. Without it the gradient replaces that sum. */
    DDP_PUT_ADD = 1u << 0
};

/* Copies a gradient to its place, desc.grad or view, and announces it; the result comes there. gradient: contiguous CPU
 * memory of the parameter's shape and dtype, not used after the call. It may be the place itself, without a copy, and
 * NULL only without elements.
 * Errors, and nothing is copied: as ddp_grad_ready; INVALID_ARGUMENT also for device memory and overlap with the place
 * (with DDP_PUT_ADD the place too); UNSUPPORTED (on a device: copy, then ddp_grad_ready_on). */
DDP_API ddp_status ddp_put(ddp_context* context, ddp_param param, const void* gradient, uint32_t flags,
                           ddp_error** error);

/* Ends the backward pass: waits until every bucket is reduced, running operations and continuations meanwhile, and
 * (copy) writes gradients back. No ddp_grad_ready may run at the same time. ddp_finalize_on waits for no device. Unless
 * unused gradients are allowed (participation.h), one that never became ready, not even in an unsynced step before, is
 * MISSING_GRADIENT, at once and on every rank, and breaks the context.
 * Errors: MISSING_GRADIENT, MISMATCH, RANK_FAILED, TIMEOUT, ABORTED, INVALID_STATE, CALLBACK or a hook's.
 * Threads: one. Blocks: for all ranks, at most the group's timeout a bucket. Collective: if synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize(ddp_context* context, ddp_error** error);

/* no_sync: with sync 0 the following steps do not communicate, and the next synced step reduces the sums. The program
 * adds up gradients; libddp adds up only sparse rows and factors. A step reads the switch as it begins, with JOIN or
 * WEIGHTED_MEAN in ddp_step_begin. Errors: INVALID_STATE (in a step).
 * Threads: one. Blocks: no. Collective: no, but alike on all ranks for a step. Callbacks: no. */
DDP_API ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error);

/* Ends a step that went wrong for the program (a NaN in the loss), at any point, and forgets unsynced steps. Nothing is
 * written back: copied gradients stay, views hold unspecified finite values. All ranks must discard; otherwise contexts
 * break with MISMATCH in the next step. Errors and facts as ddp_finalize. */
DDP_API ddp_status ddp_step_discard(ddp_context* context, ddp_error** error);

/* ddp_grad_ready for DDP_PARAM_SPARSE of shape [rows, ...]: zero but for `count` rows. indices: 0 to rows - 1; repeated
 * ones add up. values: these rows, one after another. Both are copied. Ranks may give different counts, 0 too. */
DDP_API ddp_status ddp_grad_ready_sparse(ddp_context* context, ddp_param param, const int64_t* indices,
                                         const void* values, size_t count, ddp_error** error);

/* The reduced rows: the union over ranks, ascending, each once; none before the first reduction. The memory is valid
 * until the next call that ends a step. Outputs may be NULL.
 * Threads: one. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_sparse_gradient(ddp_context* context, ddp_param param, const int64_t** indices,
                                       const void** values, size_t* count, ddp_error** error);

/* ddp_grad_ready for DDP_PARAM_FACTORED of shape [n, ...], m the product of the other extents: the gradient is left^T
 * right, with left rows x n and right rows x m, row-major. Both are copied. 0 rows: zero. The result is as a dense one,
 * with the same bits on every rank. Ranks may differ in rows, or call ddp_grad_ready instead. */
DDP_API ddp_status ddp_grad_ready_factors(ddp_context* context, ddp_param param, const void* left, const void* right,
                                          size_t rows, ddp_error** error);

/* EXPERT.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

/* Parameters, buckets, and the bucket of a parameter. -1: NULL, unknown, or buckets before ddp_commit. */
DDP_API int32_t ddp_context_param_count(const ddp_context* context);
DDP_API int32_t ddp_context_bucket_count(const ddp_context* context);
DDP_API int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param);
/* Errors: NOT_FOUND. */
DDP_API ddp_status ddp_context_find_param(const ddp_context* context, const char* name, ddp_param* param,
                                          ddp_error** error);

/* As ddp_group_abort, for the context and its group. */
DDP_API ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error);

/* Keeps the memory of views and buckets, and the group's transport: arrays over a view stay harmless, but without
 * effect, after views move or the context is freed. Errors and facts as ddp_sparse_gradient. */
DDP_API ddp_status ddp_layout_hold(ddp_context* context, ddp_layout** layout, ddp_error** error);
DDP_API void ddp_layout_free(ddp_layout* layout);

/* Replaces the group, also by one of another size, between steps or after the context broke. Parameters, buckets and
 * plan stay; a step under way is forgotten. Ranks compare them; values are not sent (ddp_broadcast).
 * Errors: INVALID_STATE (in a step of a healthy context), MISMATCH (the old group stays).
 * Threads: one. Blocks: as ddp_commit, plus 1 s for the old group. Collective: yes, in the new group. Callbacks: no. */
DDP_API ddp_status ddp_context_set_group(ddp_context* context, ddp_group* group, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_CONTEXT_H */
