#include "ddp/shard_state.h"

#include "capi/bytes.h"
#include "capi/context.h"
#include "core/shard_state.h"

using namespace libddp;

namespace {

std::string folder_of(const char* folder) {
    if (*require(folder, "folder") == '\0')
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "folder is empty");
    return folder;
}

}  // namespace

ddp_status ddp_shard_array(ddp_context* context, const char* key, ddp_param param, int64_t first,
                           int64_t count, ddp_dtype dtype, void* data, int32_t replicated,
                           ddp_error** error) {
    return guard(error, "ddp_shard_array", [&] {
        const Context& c = context_of(context);
        auto arrays = take_arrays(context);
        StateArray array{require(key, "key"),           param,          first, count, dtype,
                         static_cast<std::byte*>(data), replicated != 0};
        check_state_array(array, c.model().table, arrays);
        arrays.push_back(std::move(array));
        context->arrays = std::move(arrays);
    });
}

ddp_status ddp_shard_save(ddp_context* context, const char* folder, const char* note,
                          ddp_error** error) {
    return guard(error, "ddp_shard_save", [&] {
        const auto arrays = take_arrays(context);
        between_steps(context).committed();
        save_shards(context->impl, arrays, folder_of(folder), text_or(note, ""));
    });
}

ddp_status ddp_shard_load(ddp_context* context, const char* folder, char** text,
                          ddp_error** error) {
    return guard(error, "ddp_shard_load", [&] {
        const auto arrays = take_arrays(context);
        between_steps(context).committed();
        const std::string note = load_shards(context->impl, arrays, folder_of(folder));
        if (text) *text = static_cast<char*>(give_bytes(note));
    });
}
