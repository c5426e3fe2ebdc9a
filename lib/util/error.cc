#include "util/error.h"

#include <memory>

#include "util/printable.h"

namespace libddp {
namespace {

ddp_error no_memory{{DDP_ERROR_OUT_OF_MEMORY, "out of memory"}};

}  // namespace

Error CallError::named(const char* call) const {
    ErrorInfo named = info();
    named.message = str(call, ": ", named.message);
    return Error(std::move(named));
}

ddp_error* make_error(const ErrorInfo& info) noexcept {
    try {
        auto made = std::make_unique<ddp_error>(ddp_error{info});
        // A program's own error, such as a traceback, has lines.
        made->info.message = printable(info.message, "\n\t");
        return made.release();
    } catch (...) {
        return &no_memory;
    }
}

void free_error(ddp_error* error) noexcept {
    if (error != &no_memory) delete error;
}

ErrorInfo take_user_error(ddp_status status, ddp_error* error, const std::string& who) {
    std::unique_ptr<ddp_error, void (*)(ddp_error*)> owned(error, [](ddp_error* e) { free_error(e); });
    ErrorInfo info;
    if (owned) info = owned->info;
    if (status < 0) info.code = status;
    if (info.ok()) info.code = DDP_ERROR_CALLBACK;
    info.message = str(who, " failed", info.message.empty() ? "" : ": ", info.message);
    return info;
}

const char* status_name(ddp_status status) {
    switch (status) {
        case DDP_OK:
            return "DDP_OK";
        case DDP_ERROR_INVALID_ARGUMENT:
            return "DDP_ERROR_INVALID_ARGUMENT";
        case DDP_ERROR_INVALID_STATE:
            return "DDP_ERROR_INVALID_STATE";
        case DDP_ERROR_NOT_FOUND:
            return "DDP_ERROR_NOT_FOUND";
        case DDP_ERROR_ALREADY_EXISTS:
            return "DDP_ERROR_ALREADY_EXISTS";
        case DDP_ERROR_UNSUPPORTED:
            return "DDP_ERROR_UNSUPPORTED";
        case DDP_ERROR_OUT_OF_MEMORY:
            return "DDP_ERROR_OUT_OF_MEMORY";
        case DDP_ERROR_TIMEOUT:
            return "DDP_ERROR_TIMEOUT";
        case DDP_ERROR_UNAVAILABLE:
            return "DDP_ERROR_UNAVAILABLE";
        case DDP_ERROR_PERMISSION_DENIED:
            return "DDP_ERROR_PERMISSION_DENIED";
        case DDP_ERROR_RANK_FAILED:
            return "DDP_ERROR_RANK_FAILED";
        case DDP_ERROR_MISMATCH:
            return "DDP_ERROR_MISMATCH";
        case DDP_ERROR_ABORTED:
            return "DDP_ERROR_ABORTED";
        case DDP_ERROR_MISSING_GRADIENT:
            return "DDP_ERROR_MISSING_GRADIENT";
        case DDP_ERROR_CALLBACK:
            return "DDP_ERROR_CALLBACK";
        case DDP_ERROR_IO:
            return "DDP_ERROR_IO";
        case DDP_ERROR_LIMIT:
            return "DDP_ERROR_LIMIT";
        case DDP_ERROR_INTERNAL:
            return "DDP_ERROR_INTERNAL";
        case DDP_ERROR_UNEVEN_INPUTS:
            return "DDP_ERROR_UNEVEN_INPUTS";
        case DDP_ERROR_INTERRUPTED:
            return "DDP_ERROR_INTERRUPTED";
        case DDP_ERROR_NONFINITE:
            return "DDP_ERROR_NONFINITE";
        default:
            return "DDP_ERROR_UNKNOWN";
    }
}

}  // namespace libddp
