#include "hooks/user_hook.h"

#include "util/error_object.h"

namespace libddp {

WorkPtr UserHook::reduce(ddp_group& group, ddp_bucket& bucket) {
    ddp_work* work = nullptr;
    ddp_error* error = nullptr;
    const ddp_status status = fn_(user_data_.get(), &group, &bucket, &work, &error);
    WorkPtr result = work ? work->impl : nullptr;
    delete work;
    if (status == DDP_OK) return result;
    throw Error(take_user_error(status, error, "the communication hook"));
}

}  // namespace libddp
