/* in_place.h: gradients that are reduced where the program keeps them, for a program that has all of them in one block.
 *
 *     ddp_mem_alloc(group, bytes, &block, &error);     or any other memory
 *     desc.flags = DDP_PARAM_IN_PLACE;
 *     desc.grad = the gradient's address in the block
 *
 * With DDP_PARAM_IN_PLACE, desc.grad is the gradient's view (context.h): nothing is copied, and it never moves. All
 * ranks give the flag to the same parameters. A bucket is a range of the block: its gradients follow each other without
 * a gap, on every rank. libddp cuts buckets from the end of a block to its beginning. A rebuild changes only the order
 * in which they are sent.
 *
 * The block must outlive the context, and the group if that has broken. On one host ranks read each other's blocks, and
 * copy nothing, if the blocks are of ddp_mem_alloc. With DDP_CONTEXT_CHECK libddp copies nevertheless.
 */
#ifndef DDP_IN_PLACE_H
#define DDP_IN_PLACE_H

#include "context.h"

DDP_EXTERN_C_BEGIN

/* Registers the n slices of one tensor of shape [n, ...], such as a weight that all layers keep in one array. Slice i
 * has the shape without n, the name "NAME[i]", and the i-th part of desc->data and desc->grad; flags and uses are those
 * of desc. *first is the first slice's parameter, and *first + i that of slice i. All are registered or none.
 * Errors: as ddp_register_param; INVALID_ARGUMENT (ndim is 0; n is not from 1 to 1,048,576).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_register_slices(ddp_context* context, const ddp_param_desc* desc, ddp_param* first,
                                       ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_IN_PLACE_H */
