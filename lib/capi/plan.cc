#include "ddp/plan.h"

#include <cstdlib>

#include "capi/guard.h"
#include "core/context.h"

using namespace libddp;

int64_t ddp_context_bucket_bytes(const ddp_context* context, int32_t bucket) {
    const Reducer* reducer = context ? context->impl.reducer() : nullptr;
    if (!reducer || bucket < 0 || static_cast<std::size_t>(bucket) >= reducer->parts().layout->size()) return -1;
    return static_cast<std::int64_t>(reducer->parts().layout->plan().buckets[static_cast<std::size_t>(bucket)].content);
}

ddp_status ddp_request_rebuild(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_request_rebuild",
                 [&] { require(context, "context")->impl.committed().planner().record_order(); });
}

ddp_status ddp_plan_save(ddp_context* context, char** text, ddp_error** error) {
    return guard(error, "ddp_plan_save", [&] {
        Context& c = require(context, "context")->impl;
        require(text, "text");
        const std::string plan = plan_to_text(c.committed().parts().layout->plan(), c.model().table);
        auto* copy = static_cast<char*>(std::malloc(plan.size() + 1));
        if (!copy) throw std::bad_alloc();
        std::memcpy(copy, plan.c_str(), plan.size() + 1);
        *text = copy;
    });
}

void ddp_text_free(char* text) {
    std::free(text);
}

ddp_status ddp_plan_adopt(ddp_context* context, const char* text, ddp_error** error) {
    return guard(error, "ddp_plan_adopt", [&] {
        Context& c = require(context, "context")->impl;
        c.adopt_plan(require(text, "text"));
    });
}
