#include "ddp/status.h"

#include <cstdlib>

#include "capi/guard.h"
#include "util/version.h"

using namespace libddp;

const char* ddp_status_name(ddp_status status) {
    return status_name(status);
}

ddp_status ddp_error_code(const ddp_error* error) {
    return error ? error->info.code : DDP_OK;
}
const char* ddp_error_message(const ddp_error* error) {
    return error ? error->info.message.c_str() : "";
}
int32_t ddp_error_rank(const ddp_error* error) {
    return error ? error->info.rank : -1;
}
int32_t ddp_error_param(const ddp_error* error) {
    return error ? error->info.param : -1;
}
int32_t ddp_error_bucket(const ddp_error* error) {
    return error ? error->info.bucket : -1;
}
int64_t ddp_error_step(const ddp_error* error) {
    return error ? error->info.step : -1;
}

ddp_error* ddp_error_create(ddp_status code, const char* message) {
    ErrorInfo info;
    const bool known = code < DDP_OK && code >= kLastError;
    const auto status = guard(nullptr, "ddp_error_create", [&] {
        info = {known ? code : DDP_ERROR_CALLBACK, text_or(message, "")};
    });
    if (status != DDP_OK) info.code = status;
    return make_error(info);
}

void ddp_error_free(ddp_error* error) {
    free_error(error);
}

const char* ddp_version(void) {
    return kVersion;
}

void ddp_free(void* memory) {
    std::free(memory);
}
