#include "ddp/interrupt.h"

#include "capi/guard.h"
#include "util/interrupt.h"

using namespace libddp;

ddp_status ddp_set_interrupt_check(ddp_interrupt_fn fn, void* user_data, void (*destroy)(void*),
                                   uint32_t flags, ddp_error** error) {
    return guard(error, "ddp_set_interrupt_check", [&] {
        require_flags(flags, DDP_INTERRUPT_THIS_THREAD);
        interrupt::install(fn, user_data, destroy, (flags & DDP_INTERRUPT_THIS_THREAD) != 0);
    });
}
