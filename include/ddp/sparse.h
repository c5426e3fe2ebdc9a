/* sparse.h: gradients that are a few rows of a table, or the product of two thin matrices.
 *
 * EXPERIMENTAL: the arguments may become structs, for rows of other index types and on devices.
 */
#ifndef DDP_SPARSE_H
#define DDP_SPARSE_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

/* ddp_grad_ready for DDP_PARAM_SPARSE of shape [rows, ...]: gives `count` rows; all others are
 * zero. indices: in [0, rows); repeated ones add up. values: row after row. Both are copied:
 * docs/steps.md. Errors: as ddp_grad_ready. Threads: any, several at once for different parameters.
 * Blocks: to start a bucket. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_grad_ready_sparse(ddp_context* context, ddp_param param,
                                         const int64_t* indices, const void* values, size_t count,
                                         ddp_error** error);

/* The reduced rows: the union over ranks, ascending, each once; none before the first reduction.
 * Valid until the next one. Outputs may be NULL. Errors: INVALID_ARGUMENT (not sparse). Threads:
 * one. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_sparse_gradient(ddp_context* context, ddp_param param,
                                       const int64_t** indices, const void** values, size_t* count,
                                       ddp_error** error);

/* ddp_grad_ready for DDP_PARAM_FACTORED of shape [n, ...]: the gradient is left^T * right. left:
 * rows x n; right: rows x m, where m is the product of the other extents. Row-major, both copied:
 * docs/steps.md. Errors and facts as ddp_grad_ready_sparse. */
DDP_API ddp_status ddp_grad_ready_factors(ddp_context* context, ddp_param param, const void* left,
                                          const void* right, size_t rows, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_SPARSE_H */
