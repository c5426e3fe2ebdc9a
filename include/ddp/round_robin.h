/* round_robin.h: one group of several, so that several collectives run at once.
 *
 * EXPERIMENTAL: ddp_group_round_robin may take options, and ddp_group_options.round_robin may
 * replace it.
 */
#ifndef DDP_ROUND_ROBIN_H
#define DDP_ROUND_ROBIN_H

#include "experimental.h"
#include "group.h"

DDP_EXTERN_C_BEGIN

/* Makes one group of n groups (1 to 64) of the same ranks. Each collective runs on the next of
 * them, so n run at once and may finish out of order: docs/backends.md. groups: kept alive.
 * Collectives on them and on *out must have one order on every rank. Errors: INVALID_ARGUMENT
 * (names the unfit group), UNSUPPORTED (no progress thread), MISMATCH (ranks give different groups
 * or orders), TIMEOUT. The last two break the groups. Threads: one. Blocks: as a collective.
 * Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_round_robin(ddp_group* const* groups, size_t n, ddp_group** out,
                                         ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_ROUND_ROBIN_H */
