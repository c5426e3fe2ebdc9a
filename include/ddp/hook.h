/* hook.h: communication hooks replace what happens to a bucket of gradients between "ready" and
 * "reduced".
 *
 * The interface is that of PyTorch's DDP communication hooks (Li et al. 2020, section 6.2.3, and
 * PyTorch's documentation of register_comm_hook). A hook receives a bucket with this rank's
 * gradients, not divided by the world size. It leaves in the bucket what every rank's gradients
 * become. libddp's default, an averaging allreduce, is such a hook.
 */
#ifndef DDP_HOOK_H
#define DDP_HOOK_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* A tensor in a bucket, or of the program. Row-major: the last dimension is contiguous. */
typedef struct ddp_tensor {
    size_t struct_size;
    void* data;
    const int64_t* shape; /* ndim extents, owned by the context */
    int32_t ndim;         /* 0: a scalar */
    ddp_dtype dtype;
    int64_t count; /* number of elements: the product of shape */
    ddp_device device;
    ddp_param param; /* the parameter that it belongs to */
    int32_t reserved0;
} ddp_tensor;

/* A hook. libddp calls it once for each bucket and synced step, in the same bucket order on every
 * rank. It runs on a thread of the program that announces a gradient or ends the backward pass, not
 * always the thread that completed this bucket. With DDP_CONTEXT_SKIP_UNUSED_BUCKETS it runs on a
 * thread inside any libddp call.
 *
 * group: the context's group, borrowed. In a round robin group: the group of this bucket, and
 * continuations for buckets
 *     of different groups may run at the same time.
 * bucket: borrowed, valid until the work is finished.
 *
 * To finish within the call, return DDP_OK and leave *work NULL: the bucket then holds the result.
 * libddp does not check that it was reduced. Otherwise set *work to a work that finishes when the
 * bucket holds the result: of ddp_allreduce or another collective of any group, of ddp_work_then,
 * or of ddp_work_create. libddp takes ownership, so a work can be given once.
 *
 * To fail, return an error status, and to say more set *error to an object of ddp_error_create
 * (libddp takes ownership). ddp_finalize on this rank returns the error and names the bucket, and
 * the context breaks on every rank.
 *
 * The hook must start the same collectives in the same order on every rank, whatever the gradients
 * hold. */
typedef ddp_status (*ddp_comm_hook_fn)(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                       ddp_work** work, ddp_error** error);

/* Installs a hook in place of the one before. fn NULL: the default. Every rank must use the same
 * hook. destroy (may be NULL) is called exactly once when user_data is no longer needed: when the
 * hook is replaced or the context freed. It is not called if this call fails. Errors:
 * INVALID_ARGUMENT, INVALID_STATE (between the first ddp_grad_ready of a step and the end of
 * ddp_finalize). Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_comm_hook(ddp_context* context, ddp_comm_hook_fn fn, void* user_data,
                                     void (*destroy)(void* user_data), ddp_error** error);

/* The functions below describe a bucket, inside hooks. For NULL they return -1, 0 or NULL.
 * Threads: any, while the bucket is valid. Blocks: no. Collective: no. Callbacks: yes. */

/* 0, 1, ... in launch order, in every step including the first. */
DDP_API int32_t ddp_bucket_index(const ddp_bucket* bucket);
/* 1 for the last bucket of the step. */
DDP_API int32_t ddp_bucket_is_last(const ddp_bucket* bucket);
/* The number of synced steps before this one. ddp_error_step counts unsynced steps, too. */
DDP_API int64_t ddp_bucket_step(const ddp_bucket* bucket);

DDP_API ddp_dtype ddp_bucket_dtype(const ddp_bucket* bucket);
/* The operation that the hook should apply over ranks: DDP_AVG, or DDP_SUM with DDP_REDUCTION_SUM.
 */
DDP_API ddp_reduce_op ddp_bucket_op(const ddp_bucket* bucket);

DDP_API ddp_device ddp_bucket_device(const ddp_bucket* bucket);
/* The flat buffer of ddp_bucket_count elements: all gradients of the bucket, each at an offset that
 * is a multiple of 64 bytes. The gaps are zero, and must hold finite values afterwards. With
 * DDP_PARAM_IN_PLACE there are no gaps, and buffer and offsets are aligned to the element only. */
DDP_API void* ddp_bucket_buffer(const ddp_bucket* bucket);
DDP_API size_t ddp_bucket_count(const ddp_bucket* bucket);
/* The number of parameters in the bucket, and the gradient (inside the buffer) and value of
 * parameter i, from 0. A value's data is ddp_param_desc.data, NULL if it was not given, and its
 * dtype that of the parameter, also where a hook sees compressed gradients. Set tensor->struct_size
 * first. INVALID_ARGUMENT: i is out of range. */
DDP_API int32_t ddp_bucket_param_count(const ddp_bucket* bucket);
DDP_API ddp_status ddp_bucket_gradient(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor,
                                       ddp_error** error);
DDP_API ddp_status ddp_bucket_parameter(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor,
                                        ddp_error** error);

/* Says that the result is in `buffer`, not in the bucket's own. libddp converts it and copies it
 * into the gradients. buffer: ddp_bucket_count elements of `dtype`, same layout, on the bucket's
 * device. It must live until the hook is
 *     called for this bucket again or destroyed.
 * dtype: the bucket's own, or another floating-point type of the same kind (real for real, complex
 * for complex). Errors: INVALID_ARGUMENT (also if it overlaps the bucket's own), UNSUPPORTED. */
DDP_API ddp_status ddp_bucket_set_buffer(ddp_bucket* bucket, void* buffer, ddp_dtype dtype,
                                         ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_HOOK_H */
