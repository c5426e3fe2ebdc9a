#include "ddp/plan.h"

#include "capi/bytes.h"
#include "capi/context.h"

using namespace libddp;

ddp_status ddp_request_rebuild(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_request_rebuild",
                 [&] { context_of(context).committed().planner().record_order(); });
}

ddp_status ddp_plan_save(ddp_context* context, char** text, ddp_error** error) {
    return guard(error, "ddp_plan_save", [&] {
        Context& c = context_of(context);
        require(text, "text");
        const std::string plan =
            plan_to_text(c.committed().parts().layout->plan(), c.model().table);
        *text = static_cast<char*>(give_bytes(plan));
    });
}

ddp_status ddp_plan_adopt(ddp_context* context, const char* text, ddp_error** error) {
    return guard(error, "ddp_plan_adopt", [&] {
        Context& c = context_of(context);
        c.adopt_plan(require(text, "text"));
    });
}
