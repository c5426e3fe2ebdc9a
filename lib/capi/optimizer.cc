#include "optimizer/optimizer.h"

#include "capi/context.h"
#include "ddp/optimizer.h"

using namespace libddp;

ddp_status ddp_optimizer_create(ddp_context* context, const char* name, const char* options,
                                ddp_optimizer** optimizer, ddp_error** error) {
    return guard(error, "ddp_optimizer_create", [&] {
        Context& c = context_of(context);
        c.committed().require_idle();
        require(name, "name");
        require(optimizer, "optimizer");
        *optimizer = new ddp_optimizer{std::make_shared<Optimizer>(c, name, text_or(options, ""))};
    });
}

ddp_status ddp_optimizer_set(ddp_optimizer* optimizer, ddp_param param, const char* key,
                             double value, ddp_error** error) {
    return guard(error, "ddp_optimizer_set", [&] {
        Optimizer& o = *require(optimizer, "optimizer")->impl;
        o.set(param, require(key, "key"), value);
    });
}

ddp_status ddp_optimizer_step(ddp_optimizer* optimizer, double scale, ddp_error** error) {
    return guard(error, "ddp_optimizer_step",
                 [&] { require(optimizer, "optimizer")->impl->step(scale); });
}

ddp_status ddp_optimizer_in_step(ddp_optimizer* optimizer, double scale, ddp_error** error) {
    return guard(error, "ddp_optimizer_in_step",
                 [&] { require(optimizer, "optimizer")->impl->step_inside(scale); });
}

int32_t ddp_optimizer_state_count(ddp_optimizer* optimizer) {
    return optimizer ? static_cast<std::int32_t>(optimizer->impl->states().size()) : -1;
}

ddp_status ddp_optimizer_state_get(ddp_optimizer* optimizer, int32_t index,
                                   ddp_optimizer_state* state, ddp_error** error) {
    return guard(error, "ddp_optimizer_state_get", [&] {
        const std::size_t size = told_size(state, "state", "set it to sizeof(ddp_optimizer_state)");
        const auto all = require(optimizer, "optimizer")->impl->states();
        if (index < 0 || static_cast<std::size_t>(index) >= all.size())
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "index is ", index, "; there are ", all.size(),
                      " states");
        const Optimizer::State& s = all[static_cast<std::size_t>(index)];
        fill_struct(state, size,
                    ddp_optimizer_state{size, s.param, s.dtype, s.first, s.count, s.name, s.data,
                                        s.device});
    });
}

void ddp_optimizer_free(ddp_optimizer* optimizer) {
    free_handle(optimizer);
}
