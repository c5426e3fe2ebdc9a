/* device_kernels.h: arithmetic on a kind of device. The shared object that implements
 * device_module.h exports
 *
 *     const ddp_device_kernels *ddp_kernels_entry(void);
 *
 * beside ddp_device_entry(). Every function follows the rules of device_module.h, and the words
 * there mean the same here.
 */
#ifndef LIBDDP_DEVICE_KERNELS_H
#define LIBDDP_DEVICE_KERNELS_H

#include "device/device_module.h"

DDP_EXTERN_C_BEGIN

/* One contiguous run of elements: dst[i] = src[i] for i < count. src NULL: zeros. src may be dst
 * exactly (if both have one dtype); otherwise no dst overlaps any src or another dst of the call.
 * Aligned to the element, no more. */
typedef struct ddp_segment {
    void* dst;
    const void* src;
    size_t count;
} ddp_segment;

/* How gradients become fewer bytes: lib/kernels/codec.h. */
typedef int32_t ddp_codec_kind;
enum {
    DDP_CODEC_QUANTIZE = 1,
    DDP_CODEC_ONEBIT = 2,
    DDP_CODEC_TOPK = 3,
    /* numbers of 8 bits, which ranks add up share by share */
    DDP_CODEC_INT8 = 4,
    DDP_CODEC_E4M3 = 5,
    DDP_CODEC_E5M2 = 6
};

typedef struct ddp_codec {
    ddp_codec_kind kind;
    int32_t stochastic; /* 8 bits: not rounded to nearest */
    /* Elements that share a scale or levels; for 1-bit a multiple of 8. Quantize, 1-bit: 0: all of a
     * part. 8 bits: at most 2,048. */
    size_t block;
    double ratio; /* top-k: the share that is sent, above 0 and at most 1 */
} ddp_codec;

/* A gradient that is packed. */
typedef struct ddp_codec_part {
    void* gradient; /* elements */
    /* `count` numbers of f64 for a gradient of f64, otherwise of f32, which are added to it; NULL:
     * none. */
    void* residual;
    size_t count;  /* at least 1 */
    size_t packed; /* where its bytes begin in what a rank sends: a multiple of 8 */
} ddp_codec_part;

/* 8 bits: where a part lies in its parameter, of which others may lie in other parts. */
typedef struct ddp_codec_place {
    uint64_t first; /* the element with which it begins */
    uint32_t param;
    uint32_t whole; /* the first part of the parameter in the batch */
    /* `count` numbers as those of a residual: what the sum has lost; NULL: it is of no interest */
    void* loss;
} ddp_codec_place;

typedef struct ddp_codec_batch {
    ddp_codec codec;
    const ddp_codec_part* parts;
    size_t part_count;
    ddp_dtype dtype; /* of the gradients: f16, bf16, f32 or f64 */
    int32_t rank, world;
    int32_t reserved0;
    void* gathered; /* what the ranks send, one after another; aligned to 8 */
    size_t size;    /* bytes that a rank sends: a multiple of 8 */
    void* scratch;  /* encode_scratch() bytes for encode(); aligned to 64 */
    /* 8 bits, for which `rank` and the place of this rank in `gathered` mean nothing */
    const ddp_codec_place* places; /* of each part */
    void* sent;                    /* what this rank sends; aligned to 8 */
    uint64_t step;                 /* of random numbers, with the next one */
    uint32_t drawer;               /* this rank, or for the sum kOfTheSum of eight_bits.h */
    int32_t keeps;                 /* encode() keeps residuals: decode() comes without them */
} ddp_codec_batch;

/* LOW RANK: gradients that travel as P Q^T (PowerSGD). M = gradient + error is `rows` x `columns`,
 * row-major; error NULL: M is the gradient. The sum is formed on the fly, wherever M is read, and
 * never stored. P, Q and own_q are thin: `rank` columns, each contiguous, the next p_stride or
 * q_stride elements on. They and the error are f64 for gradients of f64, otherwise f32. */
typedef struct ddp_low_rank {
    void* gradient;
    void* error;
    void* p;
    void* q;
    void* own_q;
    size_t rows, columns, rank;
    size_t p_stride, q_stride;
    /* PROJECT_BACK on a device: room for rank * columns elements for each part; may be NULL if
     * there is one. */
    void* parts;
    const uint32_t* only_if; /* NULL, or nothing is done where it is 0 */
    /* each NULL, or RESTORE gives NaN, and leaves the error as it is, unless it is 0 */
    const uint32_t* left_out[2];
} ddp_low_rank;

/* Devices add up columns of M in parts of so many rows, so that long ones are the work of many
 * blocks. */
enum { DDP_LOW_RANK_PART_ROWS = 128 };

typedef int32_t ddp_low_rank_op;
enum {
    DDP_LOW_RANK_PROJECT = 1,      /* P = M Q */
    DDP_LOW_RANK_PROJECT_BACK = 2, /* own_q += M^T P */
    /* gradient = P Q^T, rounded to nearest even for f16 and bf16, and error = M - P own_q^T. Every
     * product and every sum is rounded by itself, and they are added in the order of the columns.
     */
    DDP_LOW_RANK_RESTORE = 3
};

/* A matrix with few columns, no more than rows, one right after the other, in f32 or f64. */
typedef struct ddp_thin {
    void* data;
    size_t rows, columns;
    /* CHECK sets it; ORTHOGONALIZE and KEEP do nothing unless it is 0. May be NULL for the others.
     */
    uint32_t* bad;
    void* kept;        /* KEEP: as many elements, where the matrix is kept from step to step */
    double* workspace; /* ORTHOGONALIZE: 2 * columns, of any contents */
    uint32_t owner;    /* DRAW */
    int32_t qr;        /* ORTHOGONALIZE: Householder's QR and not Gram-Schmidt */
} ddp_thin;

/* On every device, and on the CPU, the bits are the same: the work on a matrix has one order
 * (thin_matrix.h). */
typedef int32_t ddp_thin_op;
enum {
    /* columns that are zero get random numbers, by the formula of docs/hooks.md */
    DDP_THIN_DRAW = 1,
    DDP_THIN_ORTHOGONALIZE = 2,
    DDP_THIN_CHECK = 3, /* *bad = 1 if an element is not finite; otherwise it stays */
    DDP_THIN_KEEP = 4   /* copied to `kept`, unless all of it is zero */
};

typedef struct ddp_thin_rules {
    uint64_t seed;
    double epsilon; /* Gram-Schmidt adds it to the length by which it divides */
    uint32_t step;
} ddp_thin_rules;

/* A part of a gradient that may not be finite. */
typedef struct ddp_doubt {
    void* gradient;
    size_t count;
    void* mark; /* becomes NaN, in f64 or f32 as above, if it is not, and the gradient 0 */
} ddp_doubt;

/* The terms of which norms are made, as in lib/kernels/arithmetic.h: the sum of |x|, the sum of
 * |x|^2, or the largest |x|. */
typedef int32_t ddp_norm_kind;
enum { DDP_NORM_MAGNITUDES = 0, DDP_NORM_SQUARES = 1, DDP_NORM_LARGEST = 2 };

typedef struct ddp_norm_item {
    const void* data; /* elements, aligned to the element */
    size_t count;
    double* terms; /* becomes the terms, on the device; 0 of no elements */
} ddp_norm_item;

/* STEPS OF OPTIMIZERS, with the arithmetic, the rounding and the bits of lib/kernels/updates.h. */
typedef int32_t ddp_update_op;
enum {
    DDP_UPDATE_SGD = 1,
    DDP_UPDATE_ADAMW = 2,
    /* takes the gradients into the moments, and adds up squares of values and directions */
    DDP_UPDATE_LAMB_MEASURE = 3,
    DDP_UPDATE_LAMB = 4 /* value = value - rate * direction; reads no gradients */
};

/* Elements of one parameter. State is f64 for values of f64, otherwise f32. */
typedef struct ddp_update {
    void* values;
    void* master; /* of values of f16 and bf16, and follows one that has changed; otherwise NULL */
    const void* gradients;
    void *first, *second; /* state; NULL: there is none */
    uint64_t* digits;     /* MEASURE: 2 * kDigits of lib/kernels/exact_sum.h, which it adds to */
    size_t count;         /* MEASURE: below 2^33, or digits would overflow; no device has as many */
    double numbers[8];    /* numbers_of() of lib/kernels/updates.h */
} ddp_update;

typedef struct ddp_device_kernels {
    size_t struct_size;

    /* Brings the code of the kernels that all ranks run to the device. Code that comes only with
     * the first launch may wait for kernels that run already, and they perhaps for another rank.
     * Once a device is enough; more often does no harm. */
    ddp_status (*prepare)(int32_t device, ddp_device_failure* failure);

    /* Each of the rest enqueues. Arithmetic has the rules of lib/kernels/arithmetic.h: f16 and bf16
     * are computed in f32 and rounded once, to nearest even; integers wrap, and a scale that is not
     * 1 is 1/k with integral k and divides truncating toward zero; NaNs stay NaNs. The bits depend
     * on nothing but the arguments. */

    /* For all segments, in one pass over memory (one kernel, or a few if the list is very long):
     * dst[i] = (dst_dtype)(scale * src[i]). This packs gradients into a bucket, unpacks them,
     * scales in place, converts and fills with zeros. Equal dtypes: any; otherwise among f16, bf16,
     * f32 and f64, or among the complex types. With equal dtypes and scale 1 the bits are copied.
     */
    ddp_status (*transfer)(int32_t device, void* stream, const ddp_segment* segments, size_t count,
                           ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale,
                           ddp_device_failure* failure);
    /* out[i] = scale * (inputs[0][i] op inputs[1][i] op ...), strictly in this order. out may be
     * one of the inputs. op: SUM, PROD, MIN or MAX. input_count >= 1. */
    ddp_status (*reduce)(int32_t device, void* stream, void* out, const void* const* inputs,
                         size_t input_count, size_t count, ddp_dtype dtype, ddp_reduce_op op,
                         double scale, ddp_device_failure* failure);
    /* Scratch bytes that encode() needs. Reads all of the batch but gathered and scratch. */
    size_t (*encode_scratch)(const ddp_codec_batch* batch);
    /* For all parts: packs gradient + residual into what this rank sends, and says there whether
     * that is finite; if it is not, the part's bytes may be anything. */
    ddp_status (*encode)(int32_t device, void* stream, const ddp_codec_batch* batch,
                         ddp_device_failure* failure);
    /* For all parts, once all ranks' bytes are there: residual = gradient + residual - what this
     * rank's bytes say, and gradient = scale * the sum of what all ranks' bytes say, in the order
     * of the ranks. Where a rank found a part not finite the gradient becomes NaN and the residual
     * stays. 8 bits: with `loss` added to the residual, from `sent`. */
    ddp_status (*decode)(int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                         ddp_device_failure* failure);
    /* 8 bits, for the owner of a share: packs scale * the sum of what all ranks' bytes say, in the
     * order of the ranks, into what this rank sends, and writes what that lacks, divided by scale,
     * to `loss`. Parts have neither gradients nor residuals. */
    ddp_status (*recode)(int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                         ddp_device_failure* failure);
    /* LOW RANK, each for all items of a list at once: no item writes what another one uses. Sums
     * have one order for the same shapes; that of PROJECT and PROJECT_BACK may be another one than
     * the CPU's. */

    /* dtype: of the gradients; f16, bf16, f32 or f64. */
    ddp_status (*low_rank)(int32_t device, void* stream, ddp_low_rank_op op,
                           const ddp_low_rank* items, size_t count, ddp_dtype dtype,
                           ddp_device_failure* failure);
    /* dtype: f32 or f64. */
    ddp_status (*thin)(int32_t device, void* stream, ddp_thin_op op, const ddp_thin* items,
                       size_t count, ddp_dtype dtype, const ddp_thin_rules* rules,
                       ddp_device_failure* failure);
    /* Nothing is done where *only_if is 0. dtype: of the gradients, as for low_rank. */
    ddp_status (*leave_out)(int32_t device, void* stream, const ddp_doubt* items, size_t count,
                            ddp_dtype dtype, const uint32_t* only_if, ddp_device_failure* failure);

    /* Sets all bits of so many bytes, which is NaN in every floating-point type, if *spoiled, in
     * pinned memory of the host, is not 0 when the stream comes to it. */
    ddp_status (*spoil)(int32_t device, void* stream, void* memory, size_t bytes,
                        const uint32_t* spoiled, ddp_device_failure* failure);

    /* Terms of each item, with the bits of norm_terms() of lib/kernels/arithmetic.h; any NaN for a
     * NaN. dtype: floating point. scratch: norm_scratch() bytes of on_device.h, aligned to 8. */
    ddp_status (*norm_terms)(int32_t device, void* stream, const ddp_norm_item* items, size_t count,
                             ddp_dtype dtype, ddp_norm_kind kind, void* scratch,
                             ddp_device_failure* failure);

    /* For all items. values, gradients: types; f16, bf16, f32 or f64. */
    ddp_status (*update)(int32_t device, void* stream, ddp_update_op op, const ddp_update* items,
                         size_t count, ddp_dtype values, ddp_dtype gradients,
                         ddp_device_failure* failure);
} ddp_device_kernels;

typedef const ddp_device_kernels* ddp_kernels_entry_fn(void);

DDP_EXTERN_C_END

#endif /* LIBDDP_DEVICE_KERNELS_H */
