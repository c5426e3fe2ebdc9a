/* types.h: opaque handles, element types, reduction operations and devices. */
#ifndef DDP_TYPES_H
#define DDP_TYPES_H

#include "status.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_store ddp_store;     /* store.h */
typedef struct ddp_group ddp_group;     /* group.h */
typedef struct ddp_work ddp_work;       /* group.h: an asynchronous operation */
typedef struct ddp_context ddp_context; /* context.h */
typedef struct ddp_layout ddp_layout;   /* context.h: a hold on the memory of gradients */
typedef struct ddp_bucket ddp_bucket;   /* hook.h: gradients that are reduced together */

/* A parameter's index in registration order. */
typedef int32_t ddp_param;

/* Element types. Complex numbers are (real, imaginary) pairs. */
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

/* Bytes of one element, and the name, such as "f32"; 0 and "unknown" for an unknown dtype.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API size_t ddp_dtype_size(ddp_dtype dtype);
DDP_API const char* ddp_dtype_name(ddp_dtype dtype);

/* DDP_AVG divides the sum by the world size; for integers it truncates toward zero. DDP_MIN and
 * DDP_MAX of complex numbers are UNSUPPORTED. NaN on any rank gives NaN. Overflow, rounding:
 * docs/limits.md, "Sums". */
typedef int32_t ddp_reduce_op;
enum { DDP_SUM = 1, DDP_AVG = 2, DDP_PROD = 3, DDP_MIN = 4, DDP_MAX = 5 };

typedef int32_t ddp_device_kind;
enum {
    DDP_DEVICE_CPU = 0,
    DDP_DEVICE_CUDA = 1 /* UNSUPPORTED without the CUDA module */
};

/* Where memory is. {0, 0} is the CPU. */
typedef struct ddp_device {
    ddp_device_kind kind;
    int32_t index; /* among devices of this kind */
} ddp_device;

DDP_EXTERN_C_END

#endif /* DDP_TYPES_H */
