/* A module of another build of the same version: libddp-etcd.so and libddp-cuda.so, whose functions
 * nobody may call. */
#include <stddef.h>

#include "device/device_module.h"

#define VERSION \
    DDP_TEXT(DDP_VERSION_MAJOR) "." DDP_TEXT(DDP_VERSION_MINOR) "." DDP_TEXT(DDP_VERSION_PATCH)
#define DDP_TEXT_(x) #x
#define DDP_TEXT(x) DDP_TEXT_(x)

struct store_module {
    const char* build;
    void (*open)(void);
};

DDP_API const struct store_module* ddp_store_entry(void);
DDP_API ddp_device_entry_fn ddp_device_entry;

const struct store_module* ddp_store_entry(void) {
    static const struct store_module module = {VERSION ", build 0", NULL};
    return &module;
}

const ddp_device_module* ddp_device_entry(void) {
    static const ddp_device_module module = {
        .struct_size = sizeof module, .build = VERSION, .name = "cuda", .kind = DDP_DEVICE_CUDA};
    return &module;
}
