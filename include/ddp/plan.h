/* plan.h: the bucket plan: which gradient is in which bucket, and in which order buckets are sent.
 *
 * The first plan follows the reverse order of registration. After the first synced step it is rebuilt in the order in
 * which gradients really became ready (Li et al. 2020, section 6.2.1).
 */
#ifndef DDP_PLAN_H
#define DDP_PLAN_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* Bytes of gradients in a bucket, without gaps; -1 for NULL, an unknown bucket or before ddp_commit.
 * Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int64_t ddp_context_bucket_bytes(const ddp_context* context, int32_t bucket);

/* Records the ready order again in the next synced step, and rebuilds the buckets by it in the ddp_step_begin after
 * that. For a program whose backward pass has changed. Errors: INVALID_STATE (before ddp_commit, in the middle of a
 * step).
 * Threads: one. Blocks: no. Collective: no, but every rank must do it between the same steps. Callbacks: no. */
DDP_API ddp_status ddp_request_rebuild(ddp_context* context, ddp_error** error);

/* The plan as JSON text: the names of the parameters of each bucket, in order. *text ends with a NUL, is owned by the
 * caller and freed with ddp_text_free. Errors: INVALID_STATE (before ddp_commit), UNSUPPORTED (a name is not UTF-8),
 * OUT_OF_MEMORY.
 * Threads: any between steps. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_plan_save(ddp_context* context, char** text, ddp_error** error);
DDP_API void ddp_text_free(char* text);

/* Uses a saved plan, from the first step on, instead of the first plan and the rebuild after the first step: a job that
 * is started again, or one that was planned by hand. Before ddp_commit it is read and takes effect there; between steps
 * it takes effect in the next ddp_step_begin. It must name every parameter that is not ignored exactly once, and put
 * only parameters of one dtype and device into a bucket, and sparse ones alone. Errors: INVALID_ARGUMENT (names what is
 * wrong; the old plan stays), INVALID_STATE (in the middle of a step). A plan that differs between ranks is a MISMATCH
 * in ddp_commit or ddp_step_begin.
 * Threads: one. Blocks: no. Collective: no, but every rank must do it between the same steps. Callbacks: no. */
DDP_API ddp_status ddp_plan_adopt(ddp_context* context, const char* text, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_PLAN_H */
