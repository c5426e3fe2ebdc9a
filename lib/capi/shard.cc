#include "ddp/shard.h"

#include <cmath>

#include "capi/context.h"
#include "kernels/dtype.h"

using namespace libddp;

namespace {

const std::vector<ShardPiece>* pieces_of(const ddp_context* context) {
    const Reducer* reducer = context ? context->impl.reducer() : nullptr;
    return reducer ? &reducer->parts().layout->shards().mine() : nullptr;
}

// The program's functions are taken to do the same.
constexpr std::uint64_t kUpdatesInStep = 0x9e3779b97f4a7c15;

// Where an element of a parameter is, in memory that begins there.
void* element(void* memory, std::int64_t first, ddp_dtype dtype) {
    if (!memory) return nullptr;
    return static_cast<std::byte*>(memory) + static_cast<std::size_t>(first) * dtype_size(dtype);
}

}  // namespace

ddp_status ddp_set_owner(ddp_context* context, ddp_param param, ddp_owner owner, double cost,
                         ddp_error** error) {
    return guard(error, "ddp_set_owner", [&] {
        Context& c = context_of(context);
        if (owner < DDP_OWNER_ELEMENTS || owner > DDP_OWNER_REPLICATED)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "owner ", owner, " is unknown");
        if (!(cost >= 0) || !std::isfinite(cost))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "cost is ", cost,
                      "; it must be finite and not negative");
        if (cost != 0 && owner != DDP_OWNER_WHOLE)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "cost is ", cost,
                      ", which is for DDP_OWNER_WHOLE");
        if (!c.model().options.reducer.shard)
            fail_call(DDP_ERROR_INVALID_STATE, "create the context with DDP_CONTEXT_SHARD");
        c.building().table.set_owner(param,
                                     owner == DDP_OWNER_WHOLE        ? Owner::kOne
                                     : owner == DDP_OWNER_REPLICATED ? Owner::kAll
                                                                     : Owner::kEachItsElements,
                                     cost);
    });
}

int32_t ddp_piece_count(const ddp_context* context) {
    const std::vector<ShardPiece>* pieces = pieces_of(context);
    return pieces ? static_cast<std::int32_t>(pieces->size()) : -1;
}

ddp_status ddp_piece_get(ddp_context* context, int32_t index, ddp_piece* piece, ddp_error** error) {
    return guard(error, "ddp_piece_get", [&] {
        const std::size_t size = told_size(piece, "piece", "set it to sizeof(ddp_piece)");
        const Reducer& reducer = context_of(context).committed();
        const auto& pieces = *pieces_of(context);
        if (index < 0 || static_cast<std::size_t>(index) >= pieces.size())
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "index is ", index, "; this rank has ",
                      pieces.size(), " pieces");
        const ShardPiece& own = pieces[static_cast<std::size_t>(index)];
        const Param& p = context->impl.model().table[own.param];
        void* const gradient = p.grad ? p.grad : reducer.parts().layout->view(own.param);
        fill_struct(piece, size,
                    ddp_piece{size, own.param, own.replicated ? 1 : 0, own.first, own.count,
                              element(p.data, own.first, p.dtype),
                              element(gradient, own.first, p.gradient.dtype)});
    });
}

ddp_status ddp_publish(ddp_context* context, ddp_error** error) {
    return step_call(context, error, "ddp_publish", [](Reducer& r) {
        r.require_idle();
        r.results().publish();
    });
}

ddp_status ddp_set_update(ddp_context* context, ddp_update_fn fn, void* user_data,
                          void (*destroy)(void*), ddp_error** error) {
    return guard(error, "ddp_set_update", [&] {
        Results& results = between_steps(context).committed().results();
        results.require_updates();
        take_over(user_data, destroy, [&](const std::shared_ptr<void>& data) {
            if (!fn) return results.set_updates({}, 0);
            results.set_updates({[fn, data](const std::vector<const ddp_piece*>& pieces) {
                                    ddp_error* failure = nullptr;
                                    const ddp_status status =
                                        fn(data.get(), pieces.data(), pieces.size(), &failure);
                                    if (status != DDP_OK)
                                        throw Error(take_user_error(
                                            status, failure, "the function of ddp_set_update"));
                                }},
                                kUpdatesInStep);
        });
    });
}

ddp_status ddp_wait_value_on(ddp_context* context, ddp_param param, void* stream,
                             ddp_error** error) {
    return step_call(context, error, "ddp_wait_value_on",
                     [&](Reducer& r) { r.results().wait_value(param, stream); });
}

ddp_status ddp_wait_value(ddp_context* context, ddp_param param, ddp_error** error) {
    return step_call(context, error, "ddp_wait_value",
                     [&](Reducer& r) { r.results().wait_value(param, std::nullopt); });
}
