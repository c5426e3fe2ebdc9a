#include "ddp/backend.h"

#include "capi/guard.h"
#include "comm/registry.h"

using namespace libddp;

ddp_status ddp_backend_register(const ddp_backend* backend, ddp_error** error) {
    return guard(error, "ddp_backend_register", [&] { register_backend(backend); });
}

int32_t ddp_backend_available(const char* name, ddp_error** error) {
    return guard(error, "ddp_backend_available", [&] { find_backend(require(name, "name")); }) ==
                   DDP_OK
               ? 1
               : 0;
}
