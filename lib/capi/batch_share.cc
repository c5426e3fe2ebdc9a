#include "ddp/batch_share.h"

#include "capi/context.h"

using namespace libddp;

namespace {

// The part of a committed context that shares a batch.
Attendance& sharing_of(Context& context) {
    context.committed();
    if (!context.attendance().shares())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the batch is not shared; call ddp_share_batch before ddp_commit");
    return context.attendance();
}

}  // namespace

ddp_status ddp_share_batch(ddp_context* context, int64_t samples, int64_t multiple, int64_t most,
                           ddp_error** error) {
    return guard(error, "ddp_share_batch", [&] {
        Model& model = context_of(context).building();
        if (!model.options.weighted)
            fail_call(DDP_ERROR_INVALID_STATE,
                      "the context was not created with DDP_REDUCTION_WEIGHTED_MEAN, so batches of "
                      "different sizes have no mean");
        if (samples < 1 || samples > GlobalBatch::kMostSamples)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "samples is ", samples, "; it must be from 1 to ",
                      GlobalBatch::kMostSamples);
        if (multiple < 1 || samples % multiple != 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "multiple is ", multiple,
                      "; it must be positive, and samples, ", samples, ", a multiple of it");
        if (most != 0 && most < multiple)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "most is ", most,
                      "; it must be 0, or at least multiple, ", multiple);
        model.batch = {samples, multiple, most};
    });
}

ddp_status ddp_batch_share(ddp_context* context, int64_t* begin, int64_t* end, ddp_error** error) {
    return guard(error, "ddp_batch_share", [&] {
        Context& c = context_of(context);
        require(begin, "begin");
        require(end, "end");
        const bool next = !c.committed().parts().step->begin.told;
        const BatchShares::Range share = sharing_of(c).share(*c.group(), next);
        *begin = share.begin;
        *end = share.end;
    });
}

ddp_status ddp_batch_time(ddp_context* context, int64_t ns, ddp_error** error) {
    return guard(error, "ddp_batch_time", [&] {
        Context& c = context_of(context);
        if (ns <= 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, "ns is ", ns, "; it must be positive");
        Attendance& sharing = sharing_of(c);
        const Reducer& reducer = c.committed();
        reducer.require_idle();
        reducer.require_not_begun();
        if (reducer.parts().totals.steps == 0)
            fail_call(DDP_ERROR_INVALID_STATE, "no step has ended yet");
        sharing.set_computed(ns);
    });
}
