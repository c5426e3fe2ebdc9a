// The default communication hook: the mean (or sum) over ranks.
#pragma once

#include "ddp/hook.h"

namespace libddp {

ddp_status allreduce_hook(void* user_data, ddp_group* group, ddp_bucket* bucket, ddp_work** work, ddp_error** error);

}  // namespace libddp
