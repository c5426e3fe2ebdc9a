// The functions that libddp finds in libddp-etcd.so.
#include "util/module.h"

#include "ddp/status.h"
#include "rendezvous/etcd/store.h"
#include "rendezvous/store_module.h"

namespace {

using namespace libddp;

std::shared_ptr<StoreEngine> open(const EtcdAddress& address, const std::string& name,
                                  std::int64_t call_timeout_ms, const Deadline& deadline) {
    return std::make_shared<EtcdStore>(address, name, call_timeout_ms, deadline);
}

}  // namespace

extern "C" {

DDP_API const StoreModule* ddp_store_entry(void) {
    static const StoreModule module{build_identity(), open};
    return &module;
}

DDP_API void ddp_module_begin(const ModuleServices* services) {
    begin_module(*services);
}
}
