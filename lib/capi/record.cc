#include "ddp/record.h"

#include <csignal>
#include <string_view>

#include "capi/guard.h"
#include "comm/link.h"
#include "record/recorder.h"

using namespace libddp;

namespace {

constexpr std::size_t kLongestName = 200;

}  // namespace

ddp_status ddp_mark_begin(const char* name, ddp_error** error) {
    return guard(error, "ddp_mark_begin", [&] {
        record::mark_begin(std::string_view(require(name, "name")).substr(0, kLongestName));
    });
}

ddp_status ddp_set_workload(int64_t samples, int64_t steps, ddp_error** error) {
    return guard(error, "ddp_set_workload", [&] {
        if (samples < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "samples is ", samples,
                      "; it must not be negative");
        if (steps < 0)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "steps is ", steps, "; it must not be negative");
        record::set_workload(samples, steps);
    });
}

ddp_status ddp_set_blame_signal(int32_t signal, ddp_error** error) {
    return guard(error, "ddp_set_blame_signal", [&] {
        if (signal < 0 || signal > SIGRTMAX)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "signal is ", signal, "; signals are 1 to ",
                      SIGRTMAX, ", and 0 stands for none");
        set_blame_signal(signal);
    });
}

ddp_status ddp_mark_end(ddp_error** error) {
    return guard(error, "ddp_mark_end", [] { record::mark_end(); });
}
