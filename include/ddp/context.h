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
 * the first ddp_grad_ready on), draining (inside ddp_finalize), broken. A context breaks when its group does, or when
 * ranks disagree; all its calls then return the error that broke it, and only ddp_context_free is of use.
 *
 * Two ways to give gradients:
 *   copy   desc.grad points to the caller's own gradient. ddp_grad_ready copies it into its bucket, ddp_finalize copies
 *          the result back.
 *   view   desc.grad is NULL. The gradient lives in the bucket: ask ddp_grad_view where and write it there. Nothing is
 *          ever copied.
 */
#ifndef DDP_CONTEXT_H
#define DDP_CONTEXT_H

#include "types.h"

DDP_EXTERN_C_BEGIN

typedef int32_t ddp_reduction;
enum {
    DDP_REDUCTION_MEAN = 0, /* the sum over ranks divided by the world size */
    DDP_REDUCTION_SUM = 1
};

enum {
    /* Keep the first plan (reverse registration order); do not follow rank 0's ready order after the first step. */
    DDP_CONTEXT_NO_REBUILD = 1u << 0,
    /* ddp_commit does not send rank 0's parameters and buffers: the caller made them equal. */
    DDP_CONTEXT_NO_INITIAL_BROADCAST = 1u << 1,
    /* ddp_step_begin does not send rank 0's buffers. */
    DDP_CONTEXT_NO_BUFFER_BROADCAST = 1u << 2
};

/* Fill with ddp_context_options_init. All ranks must give the same values. */
typedef struct ddp_context_options {
    size_t struct_size;
    /* A bucket is closed once it holds at least this many bytes of gradients. 0: 26,214,400 (25 MiB). */
    uint64_t bucket_cap_bytes;
    /* The same for the first bucket of each (dtype, device), small so that communication starts early; may be larger
     * than bucket_cap_bytes. 0: 1,048,576 (1 MiB), or bucket_cap_bytes if that is smaller. */
    uint64_t first_bucket_cap_bytes;
    ddp_reduction reduction;
    uint32_t flags; /* DDP_CONTEXT_* */
} ddp_context_options;

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_context_options_init(ddp_context_options* options);

/* Makes a context on a group, which it keeps alive. options: NULL takes the defaults. *context: owned by the caller.
 * Errors: INVALID_ARGUMENT, or what broke the group.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options, ddp_context** context,
                                      ddp_error** error);

/* Frees a context. Work under way is waited for if the group is healthy, at most 1 s, and aborted otherwise. Views
 * become invalid. Never collective.
 * Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_context_free(ddp_context* context);

/* Breaks the context and its group on every rank with DDP_ERROR_ABORTED and this reason (copied; may be NULL). Calls
 * that wait in other threads return.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error);

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
    void* grad;         /* the gradient, contiguous (copy), or NULL (view). Must outlive the context */
    uint32_t flags;     /* must be 0 */
    uint32_t reserved0; /* must be 0 */
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
 * building and the group healthy), INVALID_STATE (already committed, or no parameters), OUT_OF_MEMORY, or what broke
 * the group.
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

/* How many parameters and buckets there are, and which bucket a parameter is in; -1 for NULL, before ddp_commit
 * (buckets) or for an unknown parameter.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_context_param_count(const ddp_context* context);
DDP_API int32_t ddp_context_bucket_count(const ddp_context* context);
DDP_API int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param);
/* The parameter with this name. NOT_FOUND if there is none. */
DDP_API ddp_status ddp_context_find_param(const ddp_context* context, const char* name, ddp_param* param,
                                          ddp_error** error);

/* Optional start of a step, before the forward pass: does what must not happen in the middle of one. After the first
 * synced step the buckets are rebuilt in the order in which rank 0's gradients became ready, so ask
 * ddp_layout_generation whether views have moved. Sends buffers after a synced step.
 * Errors: INVALID_STATE (not idle), MISMATCH, or what broke the group.
 * Threads: one. Blocks: for all ranks when there is something to exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_step_begin(ddp_context* context, ddp_error** error);

/* no_sync: with sync 0 the following steps do not communicate: gradients stay local and add up in the caller's memory
 * or view. The next synced step reduces the sums. The switch is read at the first ddp_grad_ready (or ddp_finalize) of a
 * step. Errors: INVALID_STATE (in the middle of a step).
 * Threads: one. Blocks: no. Collective: no, but every rank must choose the same for a step. Callbacks: no. */
DDP_API ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error);

/* Says that this step's gradient of `param` is complete. When it is the last of its bucket the reduction starts.
 * Until ddp_finalize returns the gradient must not be touched.
 * Errors: INVALID_ARGUMENT (unknown parameter), INVALID_STATE (ready twice in one step; not committed; during
 * ddp_finalize), a hook's error, or what broke the context. Where gradients come in a wrong way the context is not
 * broken by the call.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. Lock-free. */
DDP_API ddp_status ddp_grad_ready(ddp_context* context, ddp_param param, ddp_error** error);

/* The end of the backward pass: waits until every bucket is reduced and (copy) writes the gradients back.
 * A gradient that never became ready is DDP_ERROR_MISSING_GRADIENT, at once and on every rank, and breaks the context.
 * A gradient announced in an earlier unsynced step only counts as ready. Errors: MISSING_GRADIENT, MISMATCH,
 * RANK_FAILED, TIMEOUT, ABORTED, CALLBACK and what a hook returned, INVALID_STATE.
 * Threads: one, no ddp_grad_ready at the same time. Blocks: for all ranks, at most the group's timeout a bucket; runs
 * reductions and continuations itself meanwhile. Collective: yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize(ddp_context* context, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_CONTEXT_H */
