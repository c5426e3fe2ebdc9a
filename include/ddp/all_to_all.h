/* all_to_all.h: each rank sends a part of its memory to each rank, as MPI_Alltoall and ncclAlltoAll
 * do. Expert and sequence parallel programs use it.
 *
 *     ddp_all_to_all(group, send, recv, count, DDP_F32, NULL, &error);
 *
 * The collectives of group.h say what holds for these two as well: memory, works, failure. They are
 * never in place: `send` and `recv` must not overlap. This rank's part for itself is copied.
 *
 * EXPERIMENTAL: a form for parts that lie apart may be added.
 */
#ifndef DDP_ALL_TO_ALL_H
#define DDP_ALL_TO_ALL_H

#include "experimental.h"
#include "group.h"

DDP_EXTERN_C_BEGIN

/* recv[r * count .. (r + 1) * count) = send[rank * count .. (rank + 1) * count) of rank r, for
 * every r, where rank is this rank. send, recv: world_size * count elements of `dtype`. Errors:
 * INVALID_ARGUMENT (NULL or overlapping memory, a count that is too large) at once. The work ends
 * with MISMATCH (ranks give different counts), RANK_FAILED, TIMEOUT or ABORTED. Threads: any, in
 * one order on all ranks. Blocks: if work is NULL, until done. Collective: yes. Callbacks: yes. */
DDP_API ddp_status ddp_all_to_all(ddp_group* group, const void* send, void* recv, size_t count,
                                  ddp_dtype dtype, ddp_work** work, ddp_error** error);

/* The same with a count for each rank. send holds send_counts[0] elements for rank 0, then
 * send_counts[1] for rank 1, and so on; recv gets recv_counts[r] elements of each rank r in the
 * same way. The lists are copied. n: the length of both, world_size. A count may be 0, and `send`
 * or `recv` NULL if all of its counts are. Ranks exchange the lists before data moves, 16 *
 * world_size bytes a rank, with DDP_GROUP_NO_MATCH_CHECK too. Errors: as ddp_all_to_all;
 * INVALID_ARGUMENT (n is not world_size). MISMATCH also if a rank expects of another one more or
 * less than that one sends: it names both ranks and both counts, on every rank. Threads: any, in
 * one order on all ranks. Blocks: if work is NULL, until done. Collective: yes. Callbacks: yes. */
DDP_API ddp_status ddp_all_to_allv(ddp_group* group, const void* send, void* recv,
                                   const uint64_t* send_counts, const uint64_t* recv_counts,
                                   size_t n, ddp_dtype dtype, ddp_work** work, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_ALL_TO_ALL_H */
