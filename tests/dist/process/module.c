/* libddp-constructed.so: a module that registers its backend and looks for another one while it is
 * loaded, and has no entry. A group of it says what became of keys that each rank sets and deletes
 * in the store. */
#include <ddp/backend.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static ddp_status create(const ddp_backend_host* host, void** transport,
                         ddp_backend_failure* failure) {
    (void)transport;
    char key[32];
    ddp_backend_failure ignored;
    void* value = NULL;
    size_t size = 0;
    snprintf(key, sizeof key, "of/%d", (int)host->rank);
    const ddp_status set = host->store_set(host->handle, key, "value", 5, &ignored);
    const ddp_status found = host->store_get(host->handle, key, 1000, &value, &size, &ignored);
    const int same = size == 5 && memcmp(value, "value", 5) == 0;
    host->store_value_free(value);
    const ddp_status deleted = host->store_delete(host->handle, key, &ignored);
    const ddp_status again = host->store_delete(host->handle, key, &ignored);
    const ddp_status gone = host->store_get(host->handle, key, -1, &value, &size, &ignored);
    snprintf(failure->message, sizeof failure->message,
             "set %d, found %d %d, deleted %d %d, gone %d", (int)set, (int)found, same,
             (int)deleted, (int)again, gone == DDP_ERROR_TIMEOUT);
    return DDP_ERROR_UNSUPPORTED;
}
static void ignore(void* transport) {
    (void)transport;
}
static uint32_t none(void* transport) {
    (void)transport;
    return 0;
}
static ddp_status run(void* transport, const ddp_collective* collective,
                      ddp_backend_failure* failure) {
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
    ddp_backend_available("other", NULL); /* looks for another module, meanwhile */
}
