#include "rendezvous/uv_tools.h"

#include <mutex>

#include "util/descriptors.h"

namespace libddp {

// libuv ends the process if it cannot open the pipe of its signal handling, which the first loop does.
void init_loop(uv_loop_t* loop, const char* owner) {
    constexpr std::size_t kDescriptors = 6;  // the first loop of a process opens so many
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    require_descriptors(kDescriptors, owner);
    if (int status = uv_loop_init(loop); status != 0) cannot_start(owner, -status);
}

}  // namespace libddp
