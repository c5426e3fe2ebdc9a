// Small helpers over libuv for the server and the client of the tcp store.
#pragma once

#include <uv.h>

#include <cstddef>
#include <mutex>

#include "util/descriptors.h"

namespace libddp {

// uv_loop_init that throws Error where libuv would end the process: if it cannot open the pipe of its signal handling,
// which the first loop does. owner: "the store client".
inline void init_loop(uv_loop_t* loop, const char* owner) {
    constexpr std::size_t kDescriptors = 6;  // the first loop of a process opens so many
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    require_descriptors(kDescriptors, owner);
    if (int status = uv_loop_init(loop); status != 0) cannot_start(owner, -status);
}

// The bytes that the server and the client read with one call, into a buffer that all connections of one loop share.
inline constexpr std::size_t kReadBuffer = std::size_t{64} << 10;

// Closes a handle unless that has been done. The handle must stay in memory until `closed` has run.
template <class Handle>
void close_once(Handle* handle, uv_close_cb closed = nullptr) {
    auto* base = reinterpret_cast<uv_handle_t*>(handle);
    if (!uv_is_closing(base)) uv_close(base, closed);
}

}  // namespace libddp
