/* types.h: element types, reduction operations, devices and the opaque handles. */
#ifndef DDP_TYPES_H
#define DDP_TYPES_H

#include "status.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_store ddp_store;     /* a rendezvous key-value store: store.h */
typedef struct ddp_group ddp_group;     /* a set of ranks that communicate: group.h */
typedef struct ddp_work ddp_work;       /* an asynchronous operation: group.h */
typedef struct ddp_context ddp_context; /* the parameters of one model and their gradients: context.h */
typedef struct ddp_layout ddp_layout;   /* the memory of gradients as it once was: context.h */
typedef struct ddp_bucket ddp_bucket;   /* a bucket as a communication hook sees it: hook.h */

/* A parameter of a context: its index in registration order, from 0. */
typedef int32_t ddp_param;

/* Element types. Complex numbers are (real, imaginary) pairs. Values are pinned. */
typedef int32_t ddp_dtype;
enum {
    DDP_F16 = 1,  /* IEEE 754 binary16 */
    DDP_BF16 = 2, /* the upper half of an IEEE 754 binary32 */
    DDP_F32 = 3,
    DDP_F64 = 4,
    DDP_I32 = 5,
    DDP_I64 = 6,
    DDP_U8 = 7,
    DDP_C64 = 8, /* two f32 */
    DDP_C128 = 9 /* two f64 */
};

/* Bytes of one element; 0 for an unknown dtype. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API size_t ddp_dtype_size(ddp_dtype dtype);
/* "f32" and so on; "unknown" otherwise. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API const char* ddp_dtype_name(ddp_dtype dtype);

/* Reductions. Values are pinned.
 * f16 and bf16 are accumulated in f32 wherever the backend reduces in libddp's own kernels, and rounded to nearest
 * even. DDP_AVG divides by the world size; on integers it divides the sum and truncates toward zero. DDP_MIN and
 * DDP_MAX are undefined for complex numbers (DDP_ERROR_UNSUPPORTED). A NaN in any rank's element gives NaN. */
typedef int32_t ddp_reduce_op;
enum { DDP_SUM = 1, DDP_AVG = 2, DDP_PROD = 3, DDP_MIN = 4, DDP_MAX = 5 };

typedef int32_t ddp_device_kind;
enum {
    DDP_DEVICE_CPU = 0,
    DDP_DEVICE_CUDA = 1 /* needs the CUDA module; DDP_ERROR_UNSUPPORTED without it */
};

/* Where memory lives. {0, 0} is the CPU. */
typedef struct ddp_device {
    ddp_device_kind kind;
    int32_t index; /* which one, from 0; 0 for the CPU */
} ddp_device;

DDP_EXTERN_C_END

#endif /* DDP_TYPES_H */
