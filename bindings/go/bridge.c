/* bridge.c: hooks and interrupt checks. */
#include "bridge.h"

#include "_cgo_export.h"

static ddp_status hook(void* user_data, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                       ddp_error** error) {
    return ddpGoHook((uintptr_t)user_data, group, bucket, work, error);
}

static void destroy(void* user_data) {
    ddpGoDestroy((uintptr_t)user_data);
}

ddp_status ddp_go_set_hook(ddp_context* context, uintptr_t handle, ddp_error** error) {
    if (handle == 0) return ddp_set_comm_hook(context, NULL, NULL, NULL, error);
    return ddp_set_comm_hook(context, hook, (void*)handle, destroy, error);
}

/* A check of C: a wait need not enter Go ten times a second. */
static int32_t interrupted;

static int32_t check(void* user_data) {
    (void)user_data;
    return __atomic_load_n(&interrupted, __ATOMIC_RELAXED);
}

ddp_status ddp_go_install_check(ddp_error** error) {
    return ddp_set_interrupt_check(check, NULL, NULL, 0, error);
}

void ddp_go_interrupt(int32_t asked) {
    __atomic_store_n(&interrupted, asked, __ATOMIC_RELAXED);
}
