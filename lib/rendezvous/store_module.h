// The interface of a kind of store that is a module: libddp-NAME.so exports `const StoreModule*
// ddp_store_entry(void)`. It is no public interface. Both sides are C++, and exceptions go through:
// module and library come from one build, which `build` proves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/store_engine.h"
#include "util/deadline.h"

namespace libddp {

struct EtcdAddress;

struct StoreModule {
    const char* build;  // build_identity() (util/module.h); others are refused
    // Joins. name: for messages. call_timeout_ms: the bound of calls that do not wait for others.
    // Throws Error.
    std::shared_ptr<StoreEngine> (*open)(const EtcdAddress& address, const std::string& name,
                                         std::int64_t call_timeout_ms, const Deadline& deadline);
};

// Loads the module "etcd" if need be. uri: for messages. Throws UNSUPPORTED where there is none.
const StoreModule& etcd_module(const std::string& uri);

}  // namespace libddp
