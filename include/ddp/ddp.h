/* ddp.h: all of libddp's C interface. The conventions are at the top of status.h; start reading at context.h. */
#ifndef DDP_DDP_H
#define DDP_DDP_H

#include "averager.h"
#include "backend.h"
#include "builtin_hooks.h"
#include "check.h"
#include "context.h"
#include "device.h"
#include "elastic.h"
#include "group.h"
#include "hook.h"
#include "in_place.h"
#include "interrupt.h"
#include "overlap.h"
#include "participation.h"
#include "plan.h"
#include "record.h"
#include "stats.h"
#include "status.h"
#include "store.h"
#include "types.h"

#endif /* DDP_DDP_H */
