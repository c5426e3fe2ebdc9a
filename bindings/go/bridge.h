/* bridge.h: functions of C that take functions of Go. */
#ifndef DDP_GO_BRIDGE_H
#define DDP_GO_BRIDGE_H

#ifndef DDP_EXPERIMENTAL
#define DDP_EXPERIMENTAL 1
#endif
#include <ddp/ddp.h>

/* ddp_set_comm_hook with the function behind a cgo.Handle. */
ddp_status ddp_go_set_hook(ddp_context* context, uintptr_t handle, ddp_error** error);

/* The interrupt check of this process: whether ddp_go_interrupt has asked. */
ddp_status ddp_go_install_check(ddp_error** error);
void ddp_go_interrupt(int32_t asked);

#endif /* DDP_GO_BRIDGE_H */
