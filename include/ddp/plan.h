/* plan.h: the bucket plan says which gradient is in which bucket, and in which order buckets are
 * sent.
 *
 * The first plan follows the reverse order of registration. After the first synced step libddp
 * rebuilds it in the order in which gradients became ready (Li et al. 2020, section 6.2.1). A
 * bucket that has the same parameters as before keeps their order and its memory.
 *
 * EXPERIMENTAL: the form of a saved plan may change.
 */
#ifndef DDP_PLAN_H
#define DDP_PLAN_H

#include "experimental.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

/* The number of buckets, and a parameter's bucket. -1: NULL, unknown, or no buckets yet.
 * Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_context_bucket_count(const ddp_context* context);
DDP_API int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param);

/* Records the ready order again in the next synced step. The ddp_step_begin after that step
 * rebuilds the buckets in this order. For a program whose backward pass has changed. Every rank
 * must call it between the same steps. Errors: INVALID_STATE (before ddp_commit, during a step).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_request_rebuild(ddp_context* context, ddp_error** error);

/* Writes the plan as JSON: the names of the parameters of each bucket, in order. *text ends with a
 * NUL; the caller frees it with ddp_free. Errors: INVALID_STATE (before ddp_commit), UNSUPPORTED (a
 * name is not UTF-8), OUT_OF_MEMORY. Threads: any between steps. Blocks: no. Collective: no.
 * Callbacks: no. */
DDP_API ddp_status ddp_plan_save(ddp_context* context, char** text, ddp_error** error);

/* Uses a saved plan from the first step on, instead of the first plan and the rebuild after the
 * first step: for a job that is started again, or a plan written by hand. Every rank must call it
 * between the same steps.
 *
 * Called before ddp_commit, the plan is read by ddp_commit and takes effect there. Called between
 * steps, it is read at once and takes effect in the next ddp_step_begin. It must name every
 * parameter that is not ignored exactly once. The parameters of a bucket must have one dtype and
 * device. A sparse or factored parameter must be alone. A bucket of gradients with
 * DDP_PARAM_IN_PLACE must be a range of memory on every rank, in the order of addresses.
 *
 * Errors: INVALID_ARGUMENT (names what is wrong; the old plan stays), INVALID_STATE (during a
 * step). If the ranks' plans differ, ddp_commit or ddp_step_begin fails with MISMATCH. Threads:
 * one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_plan_adopt(ddp_context* context, const char* text, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_PLAN_H */
