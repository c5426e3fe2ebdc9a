/* Unloads libddp after use and exits: unload LIBRARY PORT. Nothing of libddp is linked here. */
#include <ddp/store.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
    ddp_store_options options;
    ddp_store* store = NULL;
    char uri[64];
    void* library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    ddp_status (*create)(const ddp_store_options*, ddp_store**, ddp_error**);
    void (*init)(ddp_store_options*, size_t);
    void (*end)(ddp_store*);
    if (!library) return 2;
    *(void**)&create = dlsym(library, "ddp_store_create");
    *(void**)&init = dlsym(library, "ddp_store_options_init_sized");
    *(void**)&end = dlsym(library, "ddp_store_free");
    snprintf(uri, sizeof uri, "tcp://127.0.0.1:%s", argv[2]);
    init(&options, sizeof options);
    options.uri = uri;
    options.is_server = 1;
    options.timeout_ms = 5000;
    if (create(&options, &store, NULL) != DDP_OK) return 3;
    end(store);
    if (dlclose(library) != 0) return 4;
    puts("unloaded");
    return 0;
}
