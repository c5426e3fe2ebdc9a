// The functions that libddp finds in libddp-gloo.so.
#include "util/module.h"

#include "backends/gloo/transport.h"

extern "C" {

DDP_API const ddp_backend* ddp_backend_entry(void) {
    return libddp::gloo_backend();
}

DDP_API void ddp_module_begin(const libddp::ModuleServices* services) {
    libddp::begin_module(*services);
}
}
