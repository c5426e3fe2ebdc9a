// The C functions between libddp and its modules and backends, in both directions: an exception
// becomes a status, and a struct of the caller's says why.
#pragma once

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace libddp {

// Failure: a struct with `message`, cut if need be, and perhaps the `rank` at fault.
template <class Failure>
ddp_status report(const ErrorInfo& info, Failure* failure) noexcept {
    if constexpr (requires { failure->rank; }) failure->rank = info.rank;
    const std::size_t size = std::min(info.message.size(), sizeof failure->message - 1);
    std::memcpy(failure->message, info.message.data(), size);
    failure->message[size] = '\0';
    return info.code;
}

template <class Failure, class Body>
ddp_status at_boundary(Failure* failure, Body&& body) noexcept {
    try {
        body();
        return DDP_OK;
    } catch (...) {
        return report(caught(), failure);
    }
}

}  // namespace libddp
