#include "core/buffers.h"

#include <vector>

#include "comm/verdict.h"
#include "core/agreement.h"
#include "util/error.h"

namespace libddp {

void Buffers::send(const std::shared_ptr<Group>& group, const ContextNumber& number,
                   std::int32_t root, std::int64_t synced_steps) {
    if (!model_.options.buffer_broadcast || equal_after_ >= synced_steps) return;
    if (!hook_.fn)
        broadcast_state(*group, number.tag(), model_.streams, model_.buffers(), root);
    else if (!model_.table.buffers().empty())
        call_hook(group, number);
    equal_after_ = synced_steps;
}

void Buffers::call_hook(const std::shared_ptr<Group>& group, const ContextNumber& number) const {
    std::vector<ddp_tensor> tensors;
    for (const auto& b : model_.table.buffers())
        tensors.push_back({sizeof(ddp_tensor), b.data, b.shape.data(),
                           static_cast<std::int32_t>(b.shape.size()), b.dtype, b.count, b.device,
                           -1, 0});
    // Pointers: the hook's program may know another size of the struct.
    std::vector<const ddp_tensor*> pointers;
    for (const ddp_tensor& tensor : tensors) pointers.push_back(&tensor);
    ddp_group handle{group};
    ddp_error* error = nullptr;
    const ScopedTag scope(number.tag());
    const ddp_status status =
        hook_.fn(hook_.user_data.get(), &handle, pointers.data(), pointers.size(), &error);
    if (status == DDP_OK) return;
    throw Error(group->break_everywhere(
        on_rank(group->rank(), take_user_error(status, error, "the buffer hook"))));
}

}  // namespace libddp
