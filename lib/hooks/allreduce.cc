#include "hooks/allreduce.h"

#include <new>

#include "comm/group.h"
#include "hooks/bucket.h"
#include "util/error_object.h"

namespace libddp {

ddp_status allreduce_hook(void*, ddp_group* group, ddp_bucket* bucket, ddp_work** work, ddp_error** error) {
    try {
        Collective collective;
        collective.kind = DDP_COLLECTIVE_ALLREDUCE;
        collective.recv = bucket->buffer;
        collective.count = bucket->count;
        collective.dtype = bucket->dtype;
        collective.op = bucket->mean && !bucket->prescaled ? DDP_AVG : DDP_SUM;
        *work = new ddp_work{group->impl->submit(collective)};
        return DDP_OK;
    } catch (const Error& e) {
        *error = new (std::nothrow) ddp_error{e.info()};
        return e.info().code;
    }
}

}  // namespace libddp
