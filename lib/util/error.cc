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
    std::unique_ptr<ddp_error, void (*)(ddp_error*)> owned(error,
                                                           [](ddp_error* e) { free_error(e); });
    ErrorInfo info;
    if (owned) info = owned->info;
    if (status < 0) info.code = status;
    if (info.ok()) info.code = DDP_ERROR_CALLBACK;
    info.message = str(who, " failed", info.message.empty() ? "" : ": ", info.message);
    return info;
}

const char* status_name(ddp_status status) {
#define LIBDDP_NAME(code) \
    case code:            \
        return #code
    switch (status) {
        LIBDDP_NAME(DDP_OK);
        LIBDDP_NAME(DDP_ERROR_INVALID_ARGUMENT);
        LIBDDP_NAME(DDP_ERROR_INVALID_STATE);
        LIBDDP_NAME(DDP_ERROR_NOT_FOUND);
        LIBDDP_NAME(DDP_ERROR_ALREADY_EXISTS);
        LIBDDP_NAME(DDP_ERROR_UNSUPPORTED);
        LIBDDP_NAME(DDP_ERROR_OUT_OF_MEMORY);
        LIBDDP_NAME(DDP_ERROR_TIMEOUT);
        LIBDDP_NAME(DDP_ERROR_UNAVAILABLE);
        LIBDDP_NAME(DDP_ERROR_PERMISSION_DENIED);
        LIBDDP_NAME(DDP_ERROR_RANK_FAILED);
        LIBDDP_NAME(DDP_ERROR_MISMATCH);
        LIBDDP_NAME(DDP_ERROR_ABORTED);
        LIBDDP_NAME(DDP_ERROR_MISSING_GRADIENT);
        LIBDDP_NAME(DDP_ERROR_CALLBACK);
        LIBDDP_NAME(DDP_ERROR_IO);
        LIBDDP_NAME(DDP_ERROR_LIMIT);
        LIBDDP_NAME(DDP_ERROR_INTERNAL);
        LIBDDP_NAME(DDP_ERROR_UNEVEN_INPUTS);
        LIBDDP_NAME(DDP_ERROR_INTERRUPTED);
        LIBDDP_NAME(DDP_ERROR_NONFINITE);
        default:
            return "DDP_ERROR_UNKNOWN";
    }
#undef LIBDDP_NAME
}

}  // namespace libddp
