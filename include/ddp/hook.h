/* hook.h: communication hooks, which replace what happens to a bucket of gradients between "ready" and "reduced".
 *
 * The interface is that of PyTorch's DDP communication hooks (Li et al. 2020, section 6.2.3, and PyTorch's
 * documentation of register_comm_hook): the hook receives a bucket with this rank's gradients, not divided by the world
 * size, and leaves in the bucket what every rank's gradients are to become. libddp's own default, an averaging
 * allreduce, is such a hook.
 */
#ifndef DDP_HOOK_H
#define DDP_HOOK_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* A tensor inside a bucket or of the user's. Row-major (the last dimension is contiguous). */
typedef struct ddp_tensor {
    size_t struct_size;
    void* data;
    const int64_t* shape; /* ndim extents, owned by the context */
    int32_t ndim;         /* 0: a scalar */
    ddp_dtype dtype;
    int64_t count; /* number of elements: the product of shape */
    ddp_device device;
    ddp_param param; /* which parameter */
    int32_t reserved0;
} ddp_tensor;

/* A hook. Called once for each bucket and synced step, in the same bucket order on every rank, on a thread inside
 * ddp_grad_ready or ddp_finalize: the one that completed the bucket.
 *
 * group: the context's group, borrowed; of a round robin group the one for this bucket, and continuations for buckets of
 * different groups may run at the same time. bucket: borrowed, valid until the work is finished.
 * To finish within the call return DDP_OK and leave *work NULL: what is in the bucket then is the result, and nothing
 * looks whether it was reduced. Otherwise set *work (ownership passes to libddp, so a work can be given once) to a
 * work that finishes when the bucket holds the result: one from ddp_allreduce or another collective of any group, the
 * result of ddp_work_then on one, or one of ddp_work_create. To fail return an error status, and set *error to an object of
 * ddp_error_create if there is more to say (ownership passes). The error comes out of ddp_finalize on this rank with
 * the bucket named, and breaks the context on every rank.
 *
 * The hook must start the same collectives in the same order on every rank, whatever the gradients hold. */
typedef ddp_status (*ddp_comm_hook_fn)(void* user_data, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                                       ddp_error** error);

/* Installs a hook, replacing the one before. Not between the first ddp_grad_ready of a step and the end of
 * ddp_finalize. fn NULL: back to the default. destroy (may be NULL) is called exactly once when user_data is no longer
 * needed: when the hook is replaced or the context freed; not if this call fails. Errors: INVALID_ARGUMENT,
 * INVALID_STATE.
 * Threads: one. Blocks: no. Collective: no, but every rank must use the same hook. Callbacks: no. */
DDP_API ddp_status ddp_set_comm_hook(ddp_context* context, ddp_comm_hook_fn fn, void* user_data,
                                     void (*destroy)(void* user_data), ddp_error** error);

/* The functions below tell about a bucket. They accept NULL and then answer -1, 0 or NULL.
 * Threads: any, while the bucket is valid. Blocks: no. Collective: no. Callbacks: yes, that is what they are for. */

/* 0, 1, ... in launch order, in every step including the first. */
DDP_API int32_t ddp_bucket_index(const ddp_bucket* bucket);
/* 1 for the last bucket of the step. */
DDP_API int32_t ddp_bucket_is_last(const ddp_bucket* bucket);
/* How many synced steps came before this one. */
DDP_API int64_t ddp_bucket_step(const ddp_bucket* bucket);
DDP_API ddp_dtype ddp_bucket_dtype(const ddp_bucket* bucket);
/* What the hook should apply over ranks: DDP_AVG, or DDP_SUM with DDP_REDUCTION_SUM. */
DDP_API ddp_reduce_op ddp_bucket_op(const ddp_bucket* bucket);
DDP_API ddp_device ddp_bucket_device(const ddp_bucket* bucket);
/* The flat buffer: all gradients of the bucket, each at an offset that is a multiple of 64 bytes. The gaps are zero and
 * must hold finite values afterwards. ddp_bucket_count elements. */
DDP_API void* ddp_bucket_buffer(const ddp_bucket* bucket);
DDP_API size_t ddp_bucket_count(const ddp_bucket* bucket);
/* How many parameters the bucket holds, and each one's gradient (inside the buffer) and value (what ddp_param_desc.data
 * said; data is NULL if it was not given). i counts from 0. Set tensor->struct_size first. INVALID_ARGUMENT if i is out
 * of range. */
DDP_API int32_t ddp_bucket_param_count(const ddp_bucket* bucket);
DDP_API ddp_status ddp_bucket_gradient(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor, ddp_error** error);
DDP_API ddp_status ddp_bucket_parameter(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor, ddp_error** error);

/* Says that the result is not in the bucket's own buffer but in `buffer`: ddp_bucket_count elements of `dtype`, same
 * layout, alive until the hook is called for this bucket again or destroyed. libddp converts and copies it into the
 * gradients. dtype: the bucket's own, or another floating-point type of the same kind (real for real, complex for
 * complex). Errors: INVALID_ARGUMENT, UNSUPPORTED. */
DDP_API ddp_status ddp_bucket_set_buffer(ddp_bucket* bucket, void* buffer, ddp_dtype dtype, ddp_error** error);

/* What ddp_step_begin does instead of sending rank 0's buffers. buffers: `count` tensors (tensor.param is -1), valid
 * during the call; group: the context's, borrowed. It runs where rank 0's values would be sent: after a synced step,
 * and only if there are buffers. To fail return a status, with *error if there is more to say (ownership passes). */
typedef ddp_status (*ddp_buffer_hook_fn)(void* user_data, ddp_group* group, const ddp_tensor* buffers, size_t count,
                                         ddp_error** error);

/* Installs a buffer hook; fn NULL: back to the default. destroy: as in ddp_set_comm_hook. Errors: INVALID_ARGUMENT,
 * INVALID_STATE (in the middle of a step).
 * Threads: one. Blocks: no. Collective: no, but every rank must use the same. Callbacks: no. */
DDP_API ddp_status ddp_set_buffer_hook(ddp_context* context, ddp_buffer_hook_fn fn, void* user_data,
                                       void (*destroy)(void* user_data), ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_HOOK_H */
