// The ddp_error of the C ABI: what crosses it in both directions, out of the library and back from hooks.
#pragma once

#include "util/error.h"

struct ddp_error {
    libddp::ErrorInfo info;
};

namespace libddp {

// A new object for the caller to free; where there is no memory for one, an object that says just that. Never null.
ddp_error* make_error(const ErrorInfo& info) noexcept;
void free_error(ddp_error* error) noexcept;

// What a user's function that returned `status` and perhaps an error object meant; frees the object. `who` names the
// function for the message when it gave none.
ErrorInfo take_user_error(ddp_status status, ddp_error* error, const std::string& who);

// The errors are the values from -1 to this one.
constexpr ddp_status kLastError = DDP_ERROR_INTERRUPTED;

// The name of a status value, as in ddp_status_name.
const char* status_name(ddp_status status);

}  // namespace libddp
