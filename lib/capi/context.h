// Calls of a context.
#pragma once

#include <utility>
#include <vector>

#include "capi/guard.h"
#include "core/context.h"

namespace libddp {

inline Context& context_of(ddp_context* context) {
    return require(context, "context")->impl;
}

// The context, if no step is under way.
inline Context& between_steps(ddp_context* context) {
    Context& c = context_of(context);
    c.require_between_steps();
    return c;
}

// The arrays that the program has named for one call, and for no other: it frees their memory then.
inline std::vector<StateArray> take_arrays(ddp_context* context) {
    context_of(context);
    return std::exchange(context->arrays, {});
}

// A committed context's reducer, for a gradient that has a place in a bucket.
inline Reducer& require_place(Context& context, ddp_param param) {
    Reducer& reducer = context.committed();
    context.model().table.require(param);
    const Param& p = context.model().table[param];
    if (p.sparse || p.ignored)
        throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                         str("'", p.name, "' is ", p.sparse ? "sparse" : "ignored",
                             " and has no place in a bucket"),
                         -1, param});
    return reducer;
}

// A public function that is part of a step. body: gets the reducer.
template <class Body>
ddp_status step_call(ddp_context* context, ddp_error** error, const char* call, Body body) {
    return guard(error, call, [&] { context_of(context).step_call(body); });
}

}  // namespace libddp
