#include "comm/registry.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "backends/common/topology.h"
#include "backends/hierarchical/transport.h"
#include "backends/shm/transport.h"
#include "backends/tcp/transport.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/module.h"
#include "util/mutex.h"

namespace libddp {
namespace {

struct Registry {
    Mutex mutex;
    std::map<std::string, const ddp_backend*> by_name DDP_GUARDED_BY(mutex){
        {"hierarchical", hierarchical_backend()}, {"shm", shm_backend()}, {"tcp", tcp_backend()}};
};

Registry& registry() {
    static Registry instance;
    return instance;
}

void check(const ddp_backend* backend) {
    if (!backend) fail(DDP_ERROR_INVALID_ARGUMENT, "backend is NULL");
    constexpr std::size_t kFirstSize = offsetof(ddp_backend, ready);
    if (backend->struct_size < kFirstSize)
        fail(DDP_ERROR_UNSUPPORTED, "backend: struct_size ", backend->struct_size,
             " is smaller than ", kFirstSize, ": it was built for another version of backend.h");
    if (backend->abi_version != DDP_BACKEND_ABI_VERSION)
        fail(DDP_ERROR_UNSUPPORTED, "backend: abi_version ", backend->abi_version,
             ", but this libddp needs ", DDP_BACKEND_ABI_VERSION);
    std::string name = backend->name ? backend->name : "";
    bool good_name =
        !name.empty() && name.size() <= 64 && name != "auto" &&
        std::all_of(name.begin(), name.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        });
    if (!good_name)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend: name '", name,
             "' is not 1 to 64 of a-z 0-9 - _, or is 'auto'");
    if (!backend->create || !backend->destroy || !backend->capabilities || !backend->abort ||
        !backend->run)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend '", name,
             "': create, destroy, capabilities, abort and run are required");
    if (!backend->allocate != !backend->deallocate)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend '", name,
             "': allocate and deallocate come together or not at all");
}

// A module may hold more than its name says.
std::string module_of(const std::string& backend) {
    return backend == "nccl" ? "cuda" : backend;
}

// Null if there is none; *searched says why.
const ddp_backend* load_backend(const std::string& name, std::string* searched) {
    const std::string module = module_of(name);
    using Entry = const ddp_backend*();
    auto* entry =
        reinterpret_cast<Entry*>(load_module_entry(module, "ddp_backend_entry", searched));
    if (!entry) return nullptr;
    const ddp_backend* backend = entry();
    if (!backend) *searched += str("ddp_backend_entry of libddp-", module, ".so returned NULL");
    return backend;
}

// Throws what a module says about this machine: a module loads also where what it needs is missing.
void require_usable(const std::string& name) {
    using Usable = ddp_status(ddp_backend_failure*);
    std::string ignored;
    auto* usable = reinterpret_cast<Usable*>(
        load_module_entry(module_of(name), "ddp_backend_usable", &ignored));
    if (!usable) return;
    ddp_backend_failure failure{};
    failure.rank = -1;
    const ddp_status status = usable(&failure);
    if (status != DDP_OK)
        fail(status, "backend '", name,
             "' cannot be used here: ", failure.message[0] ? failure.message : status_name(status));
}

}  // namespace

void register_backend(const ddp_backend* backend) {
    check(backend);
    auto& r = registry();
    const Lock lock(r.mutex);
    if (!r.by_name.emplace(backend->name, backend).second)
        fail(DDP_ERROR_ALREADY_EXISTS, "a backend named '", backend->name,
             "' is registered already");
}

const ddp_backend* find_backend(const std::string& name) {
    if (name == kAutoBackend) return nullptr;
    auto& r = registry();
    Lock lock(r.mutex);
    const auto registered = [&]() DDP_REQUIRES(r.mutex) -> const ddp_backend* {
        const auto found = r.by_name.find(name);
        return found == r.by_name.end() ? nullptr : found->second;
    };
    if (const ddp_backend* backend = registered()) return backend;
    // Without the lock: a module may register backends while it is loaded.
    lock.unlock();
    std::string searched;
    const ddp_backend* loaded = load_backend(name, &searched);
    lock.lock();
    if (const ddp_backend* backend = registered()) return backend;
    if (loaded) {
        lock.unlock();
        check(loaded);
        require_usable(name);
        lock.lock();
        return r.by_name.emplace(name, loaded).first->second;
    }
    std::string known = kAutoBackend;
    for (auto& [known_name, _] : r.by_name) known += ", " + known_name;
    const std::string module = module_of(name), help = how_to_get_module(module);
    if (!help.empty())
        fail(DDP_ERROR_NOT_FOUND, "backend '", name, "' needs the module libddp-", module,
             ".so: ", searched, help,
             name == "gloo" ? "; the backend 'tcp' is built in, and reaches other hosts too" : "");
    fail(DDP_ERROR_NOT_FOUND, "backend '", name, "' is unknown (known: ", known,
         "), and there is no module libddp-", module, ".so: ", searched);
}

const ddp_backend* choose_backend(const ddp_backend_host& host, std::string& why) {
    check_tcp_options(host);  // also where they are of no use
    if (host.world_size == 1) {
        why = "one rank";
        return shm_backend();
    }
    const auto topology = backend::find_topology(host, Deadline::after_ms(host.timeout_ms));
    if (topology.hosts() == 1) {
        why = "all ranks are on one host";
        return shm_backend();
    }
    if (topology.most() == 1) {
        why = "every rank is on a host of its own";
        return tcp_backend();
    }
    why = str(topology.hosts(), " hosts with ", topology.fewest(), " to ", topology.most(),
              " ranks each");
    return hierarchical_backend();
}

}  // namespace libddp
