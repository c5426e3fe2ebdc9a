/* ddp.h: all of libddp's C interface. The conventions are at the top of status.h; start reading at
 * context.h.
 *
 * The stable tier comes first. The experimental one comes only if DDP_EXPERIMENTAL is defined
 * before the include: docs/abi.md. */
#ifndef DDP_DDP_H
#define DDP_DDP_H

#include "backend.h"
#include "builtin_hooks.h"
#include "check.h"
#include "context.h"
#include "group.h"
#include "hook.h"
#include "interrupt.h"
#include "participation.h"
#include "status.h"
#include "store.h"
#include "types.h"

#ifdef DDP_EXPERIMENTAL
#include "all_to_all.h"
#include "averager.h"
#include "batch_share.h"
#include "device.h"
#include "elastic.h"
#include "freeze.h"
#include "in_place.h"
#include "more_hooks.h"
#include "norm.h"
#include "optimizer.h"
#include "overlap.h"
#include "plan.h"
#include "record.h"
#include "round_robin.h"
#include "shard.h"
#include "shard_state.h"
#include "sparse.h"
#include "stats.h"
#include "store_more.h"
#include "vote.h"
#endif

#endif /* DDP_DDP_H */
