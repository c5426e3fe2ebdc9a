/* more_hooks.h: functions around communication hooks, a hook for buffers, and options of built-in hooks as structs.
 *
 * EXPERIMENTAL: a wrapper may become an option of ddp_use_hook, and the structs may go in favour of its text.
 */
#ifndef DDP_MORE_HOOKS_H
#define DDP_MORE_HOOKS_H

#include "builtin_hooks.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* Wraps the installed hook, a user's or a built-in one. It receives buckets cast to `dtype`, DDP_F16 or DDP_BF16, and
 * its result is cast back. Buckets of f16, bf16, integers and complex numbers reach it unchanged. Values beyond 65,504
 * become infinite in f16. Errors and facts as ddp_use_hook. */
DDP_API ddp_status ddp_compress_hook(ddp_context* context, ddp_dtype dtype, ddp_error** error);

/* libddp calls it when a bucket's gradients are reduced, while later ones still travel: for an optimizer that updates
 * the bucket's parameters. The bucket's buffer holds the result. */
typedef ddp_status (*ddp_bucket_fn)(void* user_data, ddp_group* group, ddp_bucket* bucket, ddp_error** error);

/* Wraps the installed hook: after it has reduced a bucket, libddp calls fn for the bucket, in bucket order. With a
 * round robin group this is the order within each of its groups; calls for buckets of different groups may overlap.
 * flags: 0, and fn runs only on a thread inside a libddp call; or DDP_WORK_ANY_THREAD (group.h). destroy: as in
 * ddp_set_comm_hook. If fn fails, ddp_finalize returns the error and names the bucket.
 * Errors and facts as ddp_use_hook; UNSUPPORTED for unknown flags. */
DDP_API ddp_status ddp_hook_then(ddp_context* context, ddp_bucket_fn fn, void* user_data,
                                 void (*destroy)(void* user_data), uint32_t flags, ddp_error** error);

/* A buffer hook: ddp_step_begin calls it where it would send rank 0's buffers, after a synced step and only if there
 * are buffers. buffers: pointers to `count` tensors, valid during the call; their `param` is -1. group: the context's,
 * borrowed. To fail, return an error status, and to say more set *error (libddp takes ownership). */
typedef ddp_status (*ddp_buffer_hook_fn)(void* user_data, ddp_group* group, const ddp_tensor* const* buffers,
                                         size_t count, ddp_error** error);

/* Installs a buffer hook. fn NULL: the default. Every rank must use the same. destroy: as in ddp_set_comm_hook.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (during a step).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_buffer_hook(ddp_context* context, ddp_buffer_hook_fn fn, void* user_data,
                                       void (*destroy)(void* user_data), ddp_error** error);

enum {
    DDP_POWERSGD_NO_ERROR_FEEDBACK = 1u << 0,
    /* Draw Q anew in every step. Otherwise a step starts from the Q of the step before. */
    DDP_POWERSGD_NO_WARM_START = 1u << 1,
    /* The whole bucket as one square matrix: faster, less accurate. */
    DDP_POWERSGD_BATCHED = 1u << 2,
    /* How P and Q are made orthogonal. Neither: Gram-Schmidt up to 2 columns, QR above. Both: INVALID_ARGUMENT. */
    DDP_POWERSGD_GRAM_SCHMIDT = 1u << 3,
    DDP_POWERSGD_QR = 1u << 4
};

/* PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019), with the options and defaults of PyTorch's PowerSGDState. A
 * gradient of shape (n, ...) is a matrix M of n rows and m columns. It is replaced by P Q^T: P = M Q is summed over
 * ranks and made orthogonal, and Q = M^T P is averaged over ranks. P and Q have r = min(n, m, rank) columns. Scalars,
 * vectors and gradients that would not shrink enough are averaged uncompressed. Q starts as normally distributed
 * numbers of the counter-based generator Philox4x32-10 (Salmon et al., SC 2011), made orthogonal; docs/hooks.md has the
 * details. */
typedef struct ddp_powersgd_options {
    size_t struct_size;
    int32_t rank;                     /* columns of P and Q; at least 1 (1). In options: rank */
    uint32_t flags;                   /* DDP_POWERSGD_*. In options: error_feedback, warm_start (1, or 0 for the flag),
                                         orthogonalization (auto, gram_schmidt, qr) */
    int64_t start_step;               /* synced steps before compression starts (1000). In options: start */
    double min_compression_rate;      /* compress if (n + m) * r * this < n * m (2). In options: min_rate */
    double orthogonalization_epsilon; /* added to the length that a column is divided by (0). In options: epsilon */
    uint64_t seed;                    /* of Q (0). In options: seed */
    int64_t stats_interval;           /* compressed steps between two log lines with the compression rate; 0: never
                                         (10000). In options: stats_interval */
} ddp_powersgd_options;

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_powersgd_options_init_sized(ddp_powersgd_options* options, size_t size);
static inline void ddp_powersgd_options_init(ddp_powersgd_options* options) {
    ddp_powersgd_options_init_sized(options, sizeof *options);
}
/* options NULL: the defaults. Errors and facts as ddp_use_hook; UNSUPPORTED for unknown flags. */
DDP_API ddp_status ddp_use_powersgd(ddp_context* context, const ddp_powersgd_options* options, ddp_error** error);

/* 8-bit quantization. Each rank maps an element to one of 256 evenly spaced numbers between the least and the largest
 * element of its block (0 included, as PyTorch's MinMaxObserver does). The error is at most half a space, averaged over
 * the ranks. */
typedef struct ddp_quantize_options {
    size_t struct_size;
    int64_t block;        /* elements that share a range; 0: the whole parameter (0). In options: block */
    int64_t min_elements; /* (0) */
} ddp_quantize_options;

/* Fills `options` with the defaults; facts as ddp_powersgd_options_init_sized. */
DDP_API void ddp_quantize_options_init_sized(ddp_quantize_options* options, size_t size);
static inline void ddp_quantize_options_init(ddp_quantize_options* options) {
    ddp_quantize_options_init_sized(options, sizeof *options);
}
/* options NULL: the defaults. Errors and facts as ddp_use_hook. */
DDP_API ddp_status ddp_use_quantize(ddp_context* context, const ddp_quantize_options* options, ddp_error** error);

/* 1-bit SGD with error feedback (Seide et al., Interspeech 2014): an element becomes the mean of the positive elements
 * of its block, or the mean of the others. */
typedef struct ddp_onebit_options {
    size_t struct_size;
    int64_t min_elements; /* (1024) */
    int64_t block;        /* elements that share two levels: a multiple of 8; 0: the whole parameter (512) */
} ddp_onebit_options;

/* Fills `options` with the defaults; facts as ddp_powersgd_options_init_sized. */
DDP_API void ddp_onebit_options_init_sized(ddp_onebit_options* options, size_t size);
static inline void ddp_onebit_options_init(ddp_onebit_options* options) {
    ddp_onebit_options_init_sized(options, sizeof *options);
}
/* options NULL: the defaults. Errors and facts as ddp_use_hook. */
DDP_API ddp_status ddp_use_onebit(ddp_context* context, const ddp_onebit_options* options, ddp_error** error);

/* The k largest elements by magnitude of each parameter on each rank, with error feedback (Stich et al., NeurIPS 2018).
 * k = ratio * elements, rounded up. */
typedef struct ddp_topk_options {
    size_t struct_size;
    double ratio;         /* 0 < ratio <= 1 (0.01) */
    int64_t min_elements; /* (1024) */
} ddp_topk_options;

/* Fills `options` with the defaults; facts as ddp_powersgd_options_init_sized. */
DDP_API void ddp_topk_options_init_sized(ddp_topk_options* options, size_t size);
static inline void ddp_topk_options_init(ddp_topk_options* options) {
    ddp_topk_options_init_sized(options, sizeof *options);
}
/* options NULL: the defaults. Errors and facts as ddp_use_hook. */
DDP_API ddp_status ddp_use_topk(ddp_context* context, const ddp_topk_options* options, ddp_error** error);

/* Post-local SGD (Lin et al., ICLR 2020): after start_step steps, gradients are averaged within a subgroup only, and
 * the models are averaged from time to time (averager.h). */
typedef struct ddp_local_sgd_options {
    size_t struct_size;
    int64_t start_step;  /* synced steps with the whole group (1000) */
    ddp_group* subgroup; /* averages gradients afterwards; kept alive. NULL: none, gradients stay local */
} ddp_local_sgd_options;

/* Fills `options` with the defaults; facts as ddp_powersgd_options_init_sized. */
DDP_API void ddp_local_sgd_options_init_sized(ddp_local_sgd_options* options, size_t size);
static inline void ddp_local_sgd_options_init(ddp_local_sgd_options* options) {
    ddp_local_sgd_options_init_sized(options, sizeof *options);
}
/* options NULL: the defaults. Errors and facts as ddp_use_hook. */
DDP_API ddp_status ddp_use_local_sgd(ddp_context* context, const ddp_local_sgd_options* options, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_MORE_HOOKS_H */
