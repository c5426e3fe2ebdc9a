// The exceptions of the library. They are thrown anywhere below lib/capi and become a ddp_error
// there.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "ddp/status.h"
#include "util/text.h"

namespace libddp {

// An error and the facts that it names. A plain value: works and monitors keep and copy it.
struct ErrorInfo {
    ddp_status code = DDP_OK;
    std::string message;
    std::int32_t rank = -1;
    std::int32_t param = -1;
    std::int32_t bucket = -1;
    std::int64_t step = -1;

    bool ok() const { return code == DDP_OK; }
};

class Error : public std::exception {
public:
    explicit Error(ErrorInfo info) : info_(std::move(info)) {}
    Error(ddp_status code, std::string message) { info_ = {code, std::move(message)}; }

    const char* what() const noexcept override { return info_.message.c_str(); }
    const ErrorInfo& info() const noexcept { return info_; }

private:
    ErrorInfo info_;
};

// An error of the public call that is under way. Its message does not name the call: in_call() puts
// the name before it.
class CallError : public Error {
public:
    using Error::Error;
    // The same with the name.
    Error named(const char* call) const;
};

// Runs `body` as the public function `call`: a CallError leaves it with that name. guard() does so
// for every public function. Where one of them is a part of another, it keeps its own name in
// messages.
template <class Body>
void in_call(const char* call, Body&& body) {
    try {
        body();
    } catch (const CallError& error) {
        throw error.named(call);
    }
}

// The meaning of the exception that is being handled. Only inside a catch block.
inline ErrorInfo caught() noexcept {
    try {
        throw;
    } catch (const Error& e) {
        try {
            return e.info();
        } catch (...) {
        }
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {  // more than any memory has
    } catch (const std::exception& e) {
        try {
            return {DDP_ERROR_INTERNAL, e.what()};
        } catch (...) {
        }
    } catch (...) {
        return {DDP_ERROR_INTERNAL, "not a C++ std"};
    }
    return {DDP_ERROR_OUT_OF_MEMORY, "out of memory"};  // a text so short needs none
}

// throw Error from parts: fail(DDP_ERROR_TIMEOUT, "key '", key, "' did not appear within ", ms, "
// ms").
template <class... Parts>
[[noreturn]] void fail(ddp_status code, const Parts&... parts) {
    throw Error(code, str(parts...));
}

// throw CallError from parts.
template <class... Parts>
[[noreturn]] void fail_call(ddp_status code, const Parts&... parts) {
    throw CallError(code, str(parts...));
}

}  // namespace libddp

// The ddp_error of the C ABI: what crosses it in both directions, out of the library and back from
// hooks.
struct ddp_error {
    libddp::ErrorInfo info;
};

namespace libddp {

// A new object for the caller to free, with a printable message; where there is no memory for one,
// an object that says just that. Never null.
ddp_error* make_error(const ErrorInfo& info) noexcept;
void free_error(ddp_error* error) noexcept;

// The meaning of a user's function that returned `status` and perhaps an error object; frees the
// object. `who` names the function for the message when it gave none.
ErrorInfo take_user_error(ddp_status status, ddp_error* error, const std::string& who);

// The errors are the values from -1 to this one.
constexpr ddp_status kLastError = DDP_ERROR_NONFINITE;

// The name of a status value, as in ddp_status_name.
const char* status_name(ddp_status status);

}  // namespace libddp
