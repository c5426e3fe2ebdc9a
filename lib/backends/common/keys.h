// The store's functions that a backend is given, with exceptions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp::backend {

class Keys {
public:
    // prefix: of all keys.
    explicit Keys(const ddp_backend_host& host, std::string prefix = "")
        : host_(host), prefix_(std::move(prefix)) {}

    // Both throw Error with the store's own status: so a group that breaks while it is made ends
    // the making.
    void set(const std::string& key, const std::string& value) const {
        ddp_backend_failure failure{-1, ""};
        check(host_.store_set(host_.handle, (prefix_ + key).c_str(), value.data(), value.size(),
                              &failure),
              failure);
    }
    std::string get(const std::string& key, const Deadline& deadline) const {
        ddp_backend_failure failure{-1, ""};
        void* value = nullptr;
        std::size_t size = 0;
        check(host_.store_get(host_.handle, (prefix_ + key).c_str(),
                              std::max<std::int64_t>(1, deadline.remaining_ms()), &value, &size,
                              &failure),
              failure);
        std::string result(static_cast<const char*>(value), size);
        host_.store_value_free(value);
        return result;
    }

    // Throws what has broken the group meanwhile. Takes this long otherwise.
    void check_group(std::int64_t wait_ms = 1) const {
        try {
            get("none", Deadline::after_ms(wait_ms));  // nobody sets this key
        } catch (const Error& error) {
            // The group may be broken by a timeout, too, and that error names a rank.
            if (error.info().code != DDP_ERROR_TIMEOUT || error.info().rank >= 0) throw;
        }
    }

    // When every rank has read it. If that fails, or libddp is older than this module, the key
    // stays until the group ends.
    void forget(const std::string& key) const {
        if (host_.struct_size <= offsetof(ddp_backend_host, store_delete) || !host_.store_delete)
            return;
        ddp_backend_failure failure{-1, ""};
        host_.store_delete(host_.handle, (prefix_ + key).c_str(), &failure);
    }

private:
    static void check(ddp_status status, const ddp_backend_failure& failure) {
        if (status != DDP_OK) throw Error(ErrorInfo{status, failure.message, failure.rank});
    }

    const ddp_backend_host& host_;
    const std::string prefix_;
};

}  // namespace libddp::backend
