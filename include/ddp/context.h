/* context.h: a model's parameters and the averaging of their gradients: DistributedDataParallel as a C object.
 *
 *     ddp_context_create(group, NULL, &ctx, &error);
 *     for each parameter:  ddp_register_param(ctx, &desc, &param, &error);
 *     ddp_commit(ctx, &error);                    ranks compare their parameters; rank 0's values go to everyone
 *     each step:
 *         ddp_step_begin(ctx, &error);            optional, see below
 *         forward; backward, and as soon as a gradient is complete:  ddp_grad_ready(ctx, param, &error);
 *         ddp_finalize(ctx, &error);              now every gradient is the mean over all ranks
 *         optimizer
 *
 * Gradients are gathered into buckets, and each bucket is reduced in the background as soon as all of its gradients are
 * ready on this rank (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2). Buckets are launched in one order on
 * every rank.
 *
 * A STEP is what lies between two calls of ddp_finalize. STATES: building (before ddp_commit), idle, filling (from
 * the first ddp_grad_ready on), draining (from ddp_finalize_async, or inside ddp_finalize), broken. A context breaks
 * when its group does, or when ranks disagree; all calls that begin, make or end a step then return the error that
 * broke it, until it gets a new group with ddp_context_set_group or is freed.
 *
 * More of the same: participation.h (parameters that are unused, frozen, skipped; uneven batches and inputs), plan.h
 * (buckets and their order), overlap.h (the optimizer before the end of communication), stats.h, hook.h.
 *
 * Two ways to give gradients:
 *   copy   desc.grad points to the caller's own gradient. ddp_grad_ready copies it into its bucket, ddp_finalize copies
 *          the result back.
 *   view   desc.grad is NULL. The gradient lives in the bucket: ask ddp_grad_view where and write it there. Nothing is
 *          ever copied. libddp does not zero views between steps: they hold the last result. A program that adds to its
 *          gradients zeroes its views itself, and a framework must write into the view and not replace its gradient by
 *          other memory (docs/limits.md).
 * Where a framework allocates each step's gradient anew, ddp_put copies it into its place, for parameters of either kind.
 */
#ifndef DDP_CONTEXT_H
#define DDP_CONTEXT_H

#include "types.h"

DDP_EXTERN_C_BEGIN

typedef int32_t ddp_reduction;
enum {
    DDP_REDUCTION_MEAN = 0, /* the sum over ranks divided by the world size */
    DDP_REDUCTION_SUM = 1,
    /* The sum over ranks of weight * gradient, divided by the sum of the weights of ddp_set_weight: the gradient of the
     * global batch when ranks have batches of different sizes. Floating-point and complex parameters only. */
    DDP_REDUCTION_WEIGHTED_MEAN = 2
};

enum {
    /* Keep the first plan (reverse registration order); do not follow rank 0's ready order after the first step. */
    DDP_CONTEXT_NO_REBUILD = 1u << 0,
    /* ddp_commit does not send rank 0's parameters and buffers: the caller made them equal. */
    DDP_CONTEXT_NO_INITIAL_BROADCAST = 1u << 1,
    /* ddp_step_begin does not send rank 0's buffers. */
    DDP_CONTEXT_NO_BUFFER_BROADCAST = 1u << 2,
    /* A gradient that is not announced by ddp_finalize was not used in this step, instead of missing: participation.h.
     */
    DDP_CONTEXT_FIND_UNUSED = 1u << 3,
    /* Which gradients are used is found out in the first synced step and is the same in all that follow. */
    DDP_CONTEXT_STATIC_GRAPH = 1u << 4,
    /* A gradient that this rank did not use stays as it is, although other ranks used it. */
    DDP_CONTEXT_KEEP_LOCAL_UNUSED = 1u << 5,
    /* With FIND_UNUSED: ranks first agree, bucket by bucket, whether any of them used it; if none did, it is not sent.
     * Costs one small message a bucket. */
    DDP_CONTEXT_SKIP_UNUSED_BUCKETS = 1u << 6,
    /* Ranks may run out of inputs before others: ddp_join in participation.h. */
    DDP_CONTEXT_JOIN = 1u << 7,
    /* With JOIN: the mean is over the ranks that still have inputs, not over all. Not with DDP_REDUCTION_SUM. */
    DDP_CONTEXT_DIVIDE_BY_PRESENT = 1u << 8,
    /* With JOIN: all ranks stop, with DDP_ERROR_UNEVEN_INPUTS, as soon as one has no more inputs. */
    DDP_CONTEXT_STOP_AT_FIRST_JOIN = 1u << 9,
    /* Rebuild buckets in the order of the mean over ranks of when a gradient became ready, not in rank 0's order. */
    DDP_CONTEXT_CONSENSUS_ORDER = 1u << 10,
    /* Look for mistakes that are silent otherwise: see CHECK below. */
    DDP_CONTEXT_CHECK = 1u << 11
};

/* CHECK. With DDP_CONTEXT_CHECK, or with DDP_DEBUG=check in the environment of every rank, libddp finds
 *   - a gradient that is written after it was announced: DDP_ERROR_INVALID_STATE;
 *   - a gradient that is announced but was not written since the last synced step, so that it still holds that step's
 *     result: DDP_ERROR_MISSING_GRADIENT. A gradient may be like the last result by chance: it is an error once 16 different
 *     values of many digits are (of f32, f64 or complex numbers), and only if this rank's gradient of the step before was not like
 *     its result. Otherwise libddp logs a warning,
 *     and also where a gradient was zero in each of the first 20 steps;
 *   - values of parameters (desc.data) that differ between ranks, bit for bit, every check_interval synced steps:
 *     DDP_ERROR_MISMATCH. Not with the hooks "noop" and "post_local_sgd" and with DDP_CONTEXT_KEEP_LOCAL_UNUSED, where ranks may
 *     differ.
 * ddp_finalize (or ddp_wait_param) returns the error on every rank. It names parameter, step and rank, and breaks the context.
 *
 * DDP_DEBUG is read by ddp_context_create: "check", "check=N" (check_interval N, whatever the options say), or "", "off" and "0"
 * for nothing; anything else is INVALID_ARGUMENT.
 *
 * Views lie in memory of their own then, and each gradient is copied and read several times: a check is for finding a mistake,
 * not for production. Parameters on devices are refused by ddp_commit (UNSUPPORTED). Without a check nothing of this costs
 * anything. */

/* Fill with ddp_context_options_init. All ranks must give the same values. */
typedef struct ddp_context_options {
    size_t struct_size;
    /* A bucket is closed once it holds at least this many bytes of gradients. 0: 26,214,400 (25 MiB); on a group of
     * backend "shm" 1,048,576 (1 MiB), so that a bucket is reduced while it is in the cache. */
    uint64_t bucket_cap_bytes;
    /* The same for the first bucket of each (dtype, device), small so that communication starts early; may be larger
     * than bucket_cap_bytes. 0: 1,048,576 (1 MiB), or bucket_cap_bytes if that is smaller. Unlike in PyTorch, where an
     * explicit bucket_cap_mb is the cap of the first bucket too: set both for that. */
    uint64_t first_bucket_cap_bytes;
    ddp_reduction reduction;
    uint32_t flags; /* DDP_CONTEXT_* */
    /* Explicit caps in bytes instead of the two above: bucket_caps[i] is the cap of the i-th bucket of each (dtype,
     * device), the last one repeats. Copied. NULL and 0: none. */
    const uint64_t* bucket_caps;
    uint64_t bucket_cap_count;
    /* Every so many synced steps the ready order is recorded again, and buckets are rebuilt if it has changed. 0: only
     * after the first synced step and on ddp_request_rebuild. */
    int64_t rebuild_interval;
    /* With a check: values of parameters are compared between ranks every so many synced steps. 0: 10. -1: never, for a
     * program in which they differ on purpose. Without a check it has no effect. */
    int64_t check_interval;
} ddp_context_options;

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_context_options_init(ddp_context_options* options);

/* Makes a context on a group, which it keeps alive. options: NULL takes the defaults. *context: owned by the caller.
 * Errors: INVALID_ARGUMENT, or what broke the group.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options, ddp_context** context,
                                      ddp_error** error);

/* Frees a context. Work under way is waited for if the group is healthy, at most 1 s, and aborted otherwise. In the middle of
 * a synced step, before all gradients were announced, it breaks the group on every rank at once with DDP_ERROR_ABORTED, which names
 * this rank: the others would wait for gradients that never come. Views become invalid. Never collective.
 * Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_context_free(ddp_context* context);

/* Breaks the context and its group on every rank with DDP_ERROR_ABORTED and this reason (copied; may be NULL). Calls
 * that wait in other threads return.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error);

enum {
    /* libddp leaves this parameter and its gradient alone: not sent, not reduced. Announcing it is allowed and does
     * nothing. */
    DDP_PARAM_IGNORED = 1u << 0,
    /* Reduced after all others, in buckets of its own. */
    DDP_PARAM_DELAYED = 1u << 1,
    /* The gradient is a set of rows: ddp_grad_ready_sparse. `grad` must be NULL, ndim at least 1. */
    DDP_PARAM_SPARSE = 1u << 2,
    /* The gradient is a sum of outer products, and its factors may be given instead of it: ddp_grad_ready_factors. F32
     * or F64, ndim at least 1. */
    DDP_PARAM_FACTORED = 1u << 3
};

/* A parameter. Fill with ddp_param_desc_init. `name` and `shape` are copied. */
typedef struct ddp_param_desc {
    size_t struct_size;
    const char* name;     /* 1 to 1,024 bytes, unique in the context, the same on every rank */
    const int64_t* shape; /* ndim extents >= 0, row-major; NULL when ndim is 0 */
    int32_t ndim;         /* 0 (a scalar) to 16 */
    ddp_dtype dtype;      /* of the value and the gradient; any of types.h */
    ddp_device device;
    void*
        data; /* the value, contiguous; ddp_commit writes rank 0's into it. NULL: not sent. Must outlive the context */
    void* grad; /* the gradient, contiguous (copy), or NULL (view). Must outlive the context. Parameters may be slices
                     * of one tensor: only the same bytes may not be given twice */
    uint32_t flags; /* DDP_PARAM_*; 0 for a buffer */
    /* How often ddp_grad_ready is called for it in each step: more than once for a parameter that several layers share
     * and that each of them announces. 0 and 1: once. */
    uint32_t uses;
} ddp_param_desc;

/* Fills `desc` with zeros, F32 and the CPU. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_param_desc_init(ddp_param_desc* desc);

/* Adds a parameter. Register in the order of the forward pass: buckets are first planned in the reverse order.
 * *param: its index, 0, 1, 2, ...
 * Errors: INVALID_ARGUMENT (names the field), ALREADY_EXISTS (the name, or memory of another parameter), INVALID_STATE
 * (after ddp_commit), UNSUPPORTED (device).
 * Threads: one. Blocks: no. Collective: no (but ddp_commit compares). Callbacks: no. */
DDP_API ddp_status ddp_register_param(ddp_context* context, const ddp_param_desc* desc, ddp_param* param,
                                      ddp_error** error);

/* Adds a buffer: state that is not trained, such as running means. `grad` must be NULL, `data` must not. Rank 0's
 * values are sent to every rank by ddp_commit and by the ddp_step_begin that follows a synced step. Errors and facts as
 * ddp_register_param. */
DDP_API ddp_status ddp_register_buffer(ddp_context* context, const ddp_param_desc* desc, ddp_error** error);

/* Ends registration: compares all parameters, buffers and options with those of the other ranks, sends rank 0's values
 * to everyone, builds and allocates the buckets.
 * Errors: MISMATCH (the same on every rank; names the first parameter that differs and the ranks; the context stays
 * building and the group healthy), INVALID_STATE (already committed, or no parameters), UNSUPPORTED (integers where
 * the reduction needs floating-point gradients), INVALID_ARGUMENT (the plan of ddp_plan_adopt), OUT_OF_MEMORY, or what
 * broke the group.
 * Threads: one. Blocks: for all ranks, at most the group's timeout an exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_commit(ddp_context* context, ddp_error** error);

/* The gradient's place in its bucket, for a parameter of either kind. Valid until ddp_layout_generation changes.
 * Alignment: 64 bytes. Zero until written. Errors: INVALID_STATE (before ddp_commit), INVALID_ARGUMENT.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_grad_view(ddp_context* context, ddp_param param, void** view, ddp_error** error);

/* Grows when views move, which happens only inside ddp_commit and ddp_step_begin (a gradient's bytes move along). -1
 * for NULL.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int64_t ddp_layout_generation(const ddp_context* context);

/* Keeps the memory of all views and buckets as it is now: reading and writing there stays harmless (and without effect on
 * the context) after the views have moved or the context has been freed. For languages whose arrays over a view may live
 * longer than the view. It keeps the group's transport, too. *layout: owned by the caller. Errors: INVALID_STATE (before
 * ddp_commit), INVALID_ARGUMENT.
 * Threads: one. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_layout_hold(ddp_context* context, ddp_layout** layout, ddp_error** error);
/* NULL is allowed. Threads: any, once. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_layout_free(ddp_layout* layout);

/* How many parameters and buckets there are, and which bucket a parameter is in; -1 for NULL, before ddp_commit
 * (buckets) or for an unknown parameter.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_context_param_count(const ddp_context* context);
DDP_API int32_t ddp_context_bucket_count(const ddp_context* context);
DDP_API int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param);
/* The parameter with this name. NOT_FOUND if there is none. */
DDP_API ddp_status ddp_context_find_param(const ddp_context* context, const char* name, ddp_param* param,
                                          ddp_error** error);

/* Start of a step, before the forward pass: does what must not happen in the middle of one. Optional, but with
 * DDP_CONTEXT_JOIN and DDP_REDUCTION_WEIGHTED_MEAN every step must have it. After the first synced step the buckets are
 * rebuilt in the order in which gradients became ready, so ask ddp_layout_generation whether views have moved. Sends
 * buffers after a synced step: rank 0's, or those of the lowest rank that still has inputs.
 * Errors: INVALID_STATE (not idle), INVALID_ARGUMENT (weights that sum to 0), UNEVEN_INPUTS, MISMATCH, CALLBACK (the
 * buffer hook's), or what broke the group.
 * Threads: one. Blocks: for all ranks when there is something to exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_step_begin(ddp_context* context, ddp_error** error);

/* no_sync: with sync 0 the following steps do not communicate, and gradients stay as the program wrote them. The program
 * adds them up, in its own memory or view; libddp adds up only the rows of ddp_grad_ready_sparse and the factors of
 * ddp_grad_ready_factors. The next synced step reduces the sums. The switch is read at the first ddp_grad_ready (or
 * ddp_finalize) of a step. With DDP_CONTEXT_JOIN and DDP_REDUCTION_WEIGHTED_MEAN ddp_step_begin reads it, and tells the
 * other ranks: call ddp_set_sync before. On a broken context it is what the next group starts with.
 * Errors: INVALID_STATE (in the middle of a step, which those two begin with ddp_step_begin).
 * Threads: one. Blocks: no. Collective: no, but every rank must choose the same for a step. Callbacks: no. */
DDP_API ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error);

/* Says that this step's gradient of `param` is complete. When it is the last of its bucket the reduction starts. (On a
 * device: when the stream of ddp_set_stream comes to this point; see ddp_grad_ready_on in device.h.)
 * Until ddp_finalize returns the gradient must not be touched.
 * Errors: INVALID_ARGUMENT (unknown parameter), INVALID_STATE (ready twice in one step; not committed; during
 * ddp_finalize), a hook's error, or what broke the context. A gradient that comes in a wrong way neither breaks the
 * context nor begins a step.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. Lock-free. */
DDP_API ddp_status ddp_grad_ready(ddp_context* context, ddp_param param, ddp_error** error);

enum {
    /* Add the gradient to what was announced since the last synced step (in unsynced steps, and by several `uses`). Without
     * it the gradient replaces that, so the program gives the sum. */
    DDP_PUT_ADD = 1u << 0
};

/* Copies a gradient that lies somewhere else into its place, and then does what ddp_grad_ready does: for a framework that
 * allocates gradients anew in each step. The place is desc.grad, or where that is NULL the view of ddp_grad_view; there the
 * result will be as well. With desc.grad each gradient is copied twice.
 * gradient: contiguous, in memory of the CPU, of the parameter's shape and dtype; it is not used after the call. NULL only if the
 * parameter has no elements. It may be the place itself, and then nothing is copied. flags: DDP_PUT_*.
 * Errors: as ddp_grad_ready, and then nothing was copied; INVALID_ARGUMENT also for a sparse parameter, memory of a device, and
 * memory that overlaps the place (with DDP_PUT_ADD also for the place itself); UNSUPPORTED for a parameter on a device: copy to
 * its place on your stream and call ddp_grad_ready_on.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_put(ddp_context* context, ddp_param param, const void* gradient, uint32_t flags,
                           ddp_error** error);

/* ddp_grad_ready for a parameter with DDP_PARAM_SPARSE of shape [rows, ...]: this rank's gradient is zero but for
 * `count` rows. indices: which, each from 0 to rows - 1; one that occurs twice counts twice. values: count rows of the
 * parameter's dtype, one after another. Both are copied. In unsynced steps rows add up. Ranks may give different
 * numbers of rows, none included. The result is in ddp_sparse_gradient. Communication hooks are not called for it.
 * Errors: as ddp_grad_ready; INVALID_ARGUMENT also for an index out of range. It copies, so it is not lock-free.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_grad_ready_sparse(ddp_context* context, ddp_param param, const int64_t* indices,
                                         const void* values, size_t count, ddp_error** error);

/* The reduced gradient of a sparse parameter: the union over ranks of the rows, in ascending order, each once. Before
 * the first reduction, and when no rank had rows: *count is 0. The memory belongs to the context and is valid until the
 * next ddp_finalize or ddp_finalize_async. Any of the outputs may be NULL.
 * Errors: INVALID_ARGUMENT (not a sparse parameter), INVALID_STATE (before ddp_commit).
 * Threads: one. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_sparse_gradient(ddp_context* context, ddp_param param, const int64_t** indices,
                                       const void** values, size_t* count, ddp_error** error);

/* ddp_grad_ready for a parameter with DDP_PARAM_FACTORED: this rank's gradient is given as its factors ("sufficient
 * factors", Xie et al., UAI 2016). The gradient is an n x m matrix, n = shape[0] and m the product of the other extents:
 * it is left^T right, where left is rows x n and right is rows x m, row-major and of the parameter's dtype. For a linear
 * layer with weight (n, m), left is the gradient of its outputs and right its inputs, with one row for each sample. Both
 * are copied. rows 0: a gradient of zero. The result is the reduced gradient, where that of a dense parameter would be.
 *
 * Where every rank gave factors and the largest number of rows that one of them has satisfies rows * (n + m) < n * m,
 * ranks gather the factors and each multiplies them itself; otherwise each rank multiplies its own, and the gradients are
 * reduced. One small message tells them which. Both give the same up to rounding, and the same bits on every rank.
 * Communication hooks are not called for the parameter, which is alone in its bucket.
 *
 * Ranks may give different numbers of rows, and in any step some or all may call ddp_grad_ready instead, for a gradient
 * that is in its place as usual. What is announced in unsynced steps and by several `uses` adds up: the library adds up
 * factors, and the program, in its own memory or view, what it announces with ddp_grad_ready. Where there are only
 * factors that memory is not read.
 * Errors: as ddp_grad_ready; INVALID_ARGUMENT also for another kind of parameter and for more rows than any memory holds.
 * It copies, and may multiply, so it is not lock-free.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_grad_ready_factors(ddp_context* context, ddp_param param, const void* left, const void* right,
                                          size_t rows, ddp_error** error);

/* The end of the backward pass: waits until every bucket is reduced and (copy) writes the gradients back. (Without waiting
 * for devices: ddp_finalize_on in device.h.)
 * A gradient that never became ready is DDP_ERROR_MISSING_GRADIENT, at once and on every rank, and breaks the context,
 * unless the context finds out unused gradients (participation.h). A gradient announced in an earlier unsynced step
 * only counts as ready. Errors: MISSING_GRADIENT, MISMATCH, RANK_FAILED, TIMEOUT, ABORTED, CALLBACK and what a hook
 * returned, INVALID_STATE.
 * Threads: one, no ddp_grad_ready at the same time. Blocks: for all ranks, at most the group's timeout a bucket; runs
 * reductions and continuations itself meanwhile. Collective: yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize(ddp_context* context, ddp_error** error);

/* Ends a step that went wrong for the program (a NaN in the loss, an exception in the backward pass) on every rank, at
 * whatever point each of them is: what was not announced counts as zero, nothing is written back, and gradients of
 * unsynced steps are forgotten. Copied gradients keep what the caller wrote; views hold unspecified finite values.
 * Every rank must discard: one that calls ddp_finalize instead gets sums in which gradients are missing, and the contexts
 * break with DDP_ERROR_MISMATCH in its next step.
 * Errors: as ddp_finalize.
 * Threads: one, no ddp_grad_ready at the same time. Blocks: for all ranks, at most the group's timeout a bucket.
 * Collective: yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_step_discard(ddp_context* context, ddp_error** error);

/* Replaces the group between steps, or after the context broke: parameters, buckets and the plan stay, a step under
 * way is forgotten, and the context is idle again. For a job that goes on after a failure, or with another number of
 * ranks. The ranks of the new group compare their parameters and plans as in ddp_commit; values are not sent (see
 * ddp_broadcast). The old group is no longer kept alive.
 * Errors: INVALID_STATE (before ddp_commit; in the middle of a step of a healthy context), INVALID_ARGUMENT, MISMATCH
 * (the old group stays), or what broke the new group.
 * Threads: one. Blocks: for all ranks of the new group, at most its timeout an exchange; at most 1 s for the old one.
 * Collective: yes, in the new group. Callbacks: no. */
DDP_API ddp_status ddp_context_set_group(ddp_context* context, ddp_group* group, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_CONTEXT_H */
