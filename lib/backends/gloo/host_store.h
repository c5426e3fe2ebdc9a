// The group's part of the store, as backend.h offers it, in C++.
#pragma once

#include <algorithm>
#include <string>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp::gloo_tcp {

// Both throw Error with the store's own status: that is how a group that breaks during the set-up ends it.
inline void store_set(const ddp_backend_host& host, const std::string& key, const std::string& value) {
    ddp_backend_failure failure{-1, ""};
    const ddp_status status = host.store_set(host.handle, key.c_str(), value.data(), value.size(), &failure);
    if (status != DDP_OK) throw Error(ErrorInfo{status, failure.message, failure.rank});
}

inline std::string store_get(const ddp_backend_host& host, const std::string& key, const Deadline& deadline) {
    ddp_backend_failure failure{-1, ""};
    void* value = nullptr;
    std::size_t size = 0;
    const std::int64_t left = std::max<std::int64_t>(1, deadline.remaining_ms());
    const ddp_status status = host.store_get(host.handle, key.c_str(), left, &value, &size, &failure);
    if (status != DDP_OK) throw Error(ErrorInfo{status, failure.message, failure.rank});
    std::string text(static_cast<const char*>(value), size);
    host.store_value_free(value);
    return text;
}

}  // namespace libddp::gloo_tcp
