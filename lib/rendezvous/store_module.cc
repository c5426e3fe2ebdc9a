#include "rendezvous/store_module.h"

#include <cstring>

#include "util/error.h"
#include "util/module.h"

namespace libddp {

const StoreModule& etcd_module(const std::string& uri) {
    std::string searched;
    using Entry = const StoreModule*();
    auto* entry = reinterpret_cast<Entry*>(load_module_entry("etcd", "ddp_store_entry", &searched));
    if (!entry)
        fail(DDP_ERROR_UNSUPPORTED, "uri: '", uri, "' needs the module libddp-etcd.so: ", searched,
             how_to_get_module("etcd"));
    const StoreModule& module = *entry();
    if (std::strcmp(module.build, build_identity()) != 0)
        fail(DDP_ERROR_UNSUPPORTED, "uri: '", uri,
             "' needs the module libddp-etcd.so, which is of libddp ", module.build, "; this is ",
             build_identity());
    return module;
}

}  // namespace libddp
