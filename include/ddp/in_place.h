/* in_place.h: gradients that are reduced where the program keeps them, for a program that has all
 * of them in one block.
 *
 *     ddp_mem_alloc(group, bytes, &block, &error);     or any other memory
 *     desc.flags = DDP_PARAM_IN_PLACE;
 *     desc.grad = the gradient's address in the block
 *
 * With DDP_PARAM_IN_PLACE, desc.grad is the gradient's view (context.h): nothing is copied, and it
 * never moves. libddp does not zero it at first. It is aligned to its element only. With
 * DDP_CONTEXT_CHECK libddp copies nevertheless. All ranks give the flag to the same parameters;
 * otherwise ddp_commit returns MISMATCH. ddp_register_param returns INVALID_ARGUMENT if grad is
 * NULL, and if the flag meets DDP_PARAM_SPARSE or DDP_PARAM_FACTORED.
 *
 * BUCKETS. A bucket is a range of the block. Its gradients have one dtype and follow each other
 * without a gap, on every rank. A frozen or delayed gradient ends a bucket, as a gap does. libddp
 * cuts buckets from the end of a block to its beginning. A rebuild changes only the order in which
 * they are sent, unless parameters were frozen or thawed, the context got another group or plan, or
 * libddp tries another bucket cap (DDP_CONTEXT_AUTOTUNE).
 *
 * MEMORY. The block must outlive the context, and the group if that has broken. ddp_layout_hold
 * does not keep it. After an error that broke the context, libddp may write into the block until
 * ddp_context_set_group has succeeded, or until context and group are freed.
 *
 * ONE HOST. Ranks read and write each other's blocks, and copy nothing, if every block is of
 * ddp_mem_alloc with the context's group. In a round robin group this holds for the buckets of its
 * first group.
 *
 * ANOTHER GROUP. ddp_context_set_group returns ABORTED, and breaks the new group, if something may
 * still write into a gradient: a reduction of the old group that has not ended, or, if the old
 * group broke, a rank that could reach the block because it is of ddp_mem_alloc. Then make another
 * context, with gradients in other memory.
 *
 * EXPERIMENTAL: where memory comes from may become an option of the group.
 */
#ifndef DDP_IN_PLACE_H
#define DDP_IN_PLACE_H

#include "context.h"
#include "experimental.h"
#include "group.h"

DDP_EXTERN_C_BEGIN

/* CPU memory in which this group's collectives are fastest (docs/backends.md, "shm"). Zeroed,
 * aligned to 64 bytes, may outlive the group. Free it with ddp_mem_free once no operation uses it.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_mem_alloc(ddp_group* group, size_t bytes, void** memory, ddp_error** error);
/* NULL is allowed. Errors: INVALID_ARGUMENT (not of ddp_mem_alloc, or freed before). Facts as
 * ddp_mem_alloc. */
DDP_API ddp_status ddp_mem_free(void* memory, ddp_error** error);

/* Registers the n slices of one tensor of shape [n, ...], such as a weight that all layers keep in
 * one array. Slice i has the shape without n, the name "NAME[i]", and the i-th part of desc->data
 * and desc->grad; flags and uses are those of desc. *first is the first slice's parameter, and
 * *first + i that of slice i. All are registered or none. Errors: as ddp_register_param;
 * INVALID_ARGUMENT (ndim is 0; n is not from 1 to 1,048,576). Threads: one. Blocks: no. Collective:
 * no. Callbacks: no. */
DDP_API ddp_status ddp_register_slices(ddp_context* context, const ddp_param_desc* desc,
                                       ddp_param* first, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_IN_PLACE_H */
