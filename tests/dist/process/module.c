/* libddp-constructed.so: a module that registers its backend while it is loaded, and has no entry. */
#include <ddp/backend.h>
#include <stddef.h>

static ddp_status create(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure) {
    (void)host, (void)transport, (void)failure;
    return DDP_ERROR_UNSUPPORTED;
}
static void ignore(void* transport) {
    (void)transport;
}
static uint32_t none(void* transport) {
    (void)transport;
    return 0;
}
static ddp_status run(void* transport, const ddp_collective* collective, ddp_backend_failure* failure) {
    (void)transport, (void)collective, (void)failure;
    return DDP_ERROR_UNSUPPORTED;
}

static const ddp_backend backend = {.struct_size = sizeof(ddp_backend),
                                    .abi_version = DDP_BACKEND_ABI_VERSION,
                                    .name = "constructed",
                                    .create = create,
                                    .destroy = ignore,
                                    .capabilities = none,
                                    .abort = ignore,
                                    .run = run};

__attribute__((constructor)) static void register_backend(void) {
    ddp_backend_register(&backend, NULL);
}
