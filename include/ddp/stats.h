/* stats.h: what a context has done, and how long it took. Always on: a step costs a few clock
 * readings a bucket.
 *
 * EXPERIMENTAL: what is counted may change.
 */
#ifndef DDP_STATS_H
#define DDP_STATS_H

#include "experimental.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

/* Set struct_size first. Times are in nanoseconds: of the last synced step that ended, and
 * (total_*) of all. */
typedef struct ddp_stats {
    size_t struct_size;
    int64_t steps;        /* steps that ended */
    int64_t synced_steps; /* of these, steps with communication */
    int64_t rebuilds;     /* how often libddp rebuilt the buckets */
    int32_t param_count;
    int32_t bucket_count;
    int32_t unused_params;  /* not ignored, and used by no rank in the last synced step */
    int32_t unsent_buckets; /* not sent in the last synced step: no rank used them */
    uint64_t param_bytes;   /* of all gradients except ignored and sparse ones */
    uint64_t unused_bytes;  /* of these, used by no rank in the last synced step */
    /* over all steps: of sent buckets; of sparse and factored ones, what this rank gave */
    uint64_t sent_bytes;
    /* from the first ddp_grad_ready to ddp_finalize or ddp_finalize_async */
    int64_t backward_ns;
    /* while at least one bucket was on its way, from its launch to its end */
    int64_t comm_ns;
    int64_t overlap_ns; /* the part of comm_ns before ddp_finalize or ddp_finalize_async */
    int64_t wait_ns;    /* inside ddp_finalize_async, ddp_wait_param and ddp_finalize */
    int64_t total_backward_ns, total_comm_ns, total_overlap_ns, total_wait_ns;
    /* of ddp_grad_ready, ddp_finalize and other calls in a step; DDP_OK if none failed */
    ddp_status last_error;
    int32_t reserved0;
    /* Since the communication hook was installed: bytes of gradients that it received, and that
     * this rank gave to collectives for them. The ratio is the compression rate. */
    uint64_t hook_bytes_in;
    uint64_t hook_bytes_out;
    /* Bytes of gradients copied over all steps: between the caller's memory and buckets, and by a
     * shared-memory backend through memory of its own. 0 for views on one host, where gradients are
     * reduced in place. */
    uint64_t copied_bytes;
    /* a rebuild uses it, unless a plan was adopted. Of bucket_caps the last */
    uint64_t bucket_cap_bytes;
    int32_t tuning; /* 1: libddp is still looking for it (DDP_CONTEXT_AUTOTUNE) */
    int32_t reserved1;
    /* bytes that this rank gave to collectives for averages of parameters (averager.h) */
    uint64_t averaged_bytes;
} ddp_stats;

/* Fills *stats. Before ddp_commit every field is 0 except param_count and last_error. Errors:
 * INVALID_ARGUMENT. Threads: one. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_stats_get(ddp_context* context, ddp_stats* stats, ddp_error** error);

/* Lists. At most `capacity` elements are written; *count is the length of the whole list.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (before ddp_commit).
 * Threads: one. Blocks: no. Collective: no. Callbacks: yes. */

/* Bytes of gradients in each bucket: of the plan in use, or (initial 1) of the plan that ddp_commit
 * made. */
DDP_API ddp_status ddp_stats_bucket_sizes(ddp_context* context, int32_t initial, uint64_t* bytes,
                                          size_t capacity, size_t* count, ddp_error** error);
/* The order in which this rank's gradients became ready when libddp last recorded it. Empty before.
 */
DDP_API ddp_status ddp_stats_ready_order(ddp_context* context, ddp_param* params, size_t capacity,
                                         size_t* count, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_STATS_H */
