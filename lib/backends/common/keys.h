// The store's functions that a backend is given, with exceptions.
#pragma once

#include <algorithm>
#include <string>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp::backend {

class Keys {
public:
    // prefix: of all keys.
    explicit Keys(const ddp_backend_host& host, std::string prefix = "") : host_(host), prefix_(std::move(prefix)) {}

    void set(const std::string& key, const std::string& value) {
        check(host_.store_set(host_.handle, (prefix_ + key).c_str(), value.data(), value.size(), &failure_));
    }
    std::string get(const std::string& key, const Deadline& deadline) {
        void* value = nullptr;
        std::size_t size = 0;
        check(host_.store_get(host_.handle, (prefix_ + key).c_str(), std::max<std::int64_t>(1, deadline.remaining_ms()),
                              &value, &size, &failure_));
        std::string result(static_cast<const char*>(value), size);
        host_.store_value_free(value);
        return result;
    }

private:
    void check(ddp_status status) {
        if (status != DDP_OK) throw Error(ErrorInfo{status, failure_.message, failure_.rank});
    }

    const ddp_backend_host& host_;
    const std::string prefix_;
    ddp_backend_failure failure_{};
};

}  // namespace libddp::backend
