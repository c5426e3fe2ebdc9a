// The services that libddp gives a backend, with a store that answers what a function says.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "ddp/backend.h"

namespace fuzz {

struct FakeHost {
    std::function<std::string(const std::string& key)> get;
    std::function<void(const std::string& key, const std::string& value)> set = [](const auto&,
                                                                                   const auto&) {};

    ddp_backend_host services(std::int32_t rank, std::int32_t world, const char* options = "") {
        ddp_backend_host host{};
        host.struct_size = sizeof host;
        host.handle = this;
        host.rank = rank;
        host.world_size = world;
        host.group_name = "fuzz";
        host.options = options;
        host.timeout_ms = 1000;
        host.store_set = [](void* self, const char* key, const void* value, std::size_t size,
                            ddp_backend_failure*) {
            static_cast<FakeHost*>(self)->set(key, {static_cast<const char*>(value), size});
            return ddp_status{DDP_OK};
        };
        host.store_get = [](void* self, const char* key, std::int64_t, void** value,
                            std::size_t* size, ddp_backend_failure*) {
            const std::string text = static_cast<FakeHost*>(self)->get(key);
            *size = text.size();
            *value = std::malloc(text.size() + 1);
            std::memcpy(*value, text.c_str(), text.size() + 1);
            return ddp_status{DDP_OK};
        };
        host.store_value_free = &std::free;
        host.log = [](void*, std::int32_t, const char*) {};
        host.interrupted = [](void*) -> std::int32_t { return 0; };
        return host;
    }
};

}  // namespace fuzz
