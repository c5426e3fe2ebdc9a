#include "ddp/record.h"

#include <string_view>

#include "capi/guard.h"
#include "record/recorder.h"

using namespace libddp;

namespace {

constexpr std::size_t kLongestName = 200;

}  // namespace

ddp_status ddp_mark_begin(const char* name, ddp_error** error) {
    return guard(error, "ddp_mark_begin",
                 [&] { record::mark_begin(std::string_view(require(name, "name")).substr(0, kLongestName)); });
}

ddp_status ddp_mark_end(ddp_error** error) {
    return guard(error, "ddp_mark_end", [] { record::mark_end(); });
}
