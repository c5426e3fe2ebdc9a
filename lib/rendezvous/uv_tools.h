// Small helpers over libuv for the server and the client of the tcp store.
#pragma once

#include <uv.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

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

// Writes the bytes and owns them until they are out; `done` gets libuv's status. A failure to start the write is also
// told to `done`, at once.
inline void write_owned(uv_stream_t* stream, std::string bytes, std::function<void(int status)> done) {
    struct Write {
        uv_write_t request;
        std::string bytes;
        std::function<void(int)> done;
    };
    auto* write = new Write{{}, std::move(bytes), std::move(done)};
    write->request.data = write;
    uv_buf_t buffer = uv_buf_init(write->bytes.data(), static_cast<unsigned int>(write->bytes.size()));
    auto finished = [](uv_write_t* request, int status) {
        auto* mine = static_cast<Write*>(request->data);
        mine->done(status);
        delete mine;
    };
    int status = uv_write(&write->request, stream, &buffer, 1, finished);
    if (status != 0) finished(&write->request, status);
}

// A buffer that all streams of one loop read into, one after the other: each must copy the bytes before its read
// callback returns. loop->data points to its kReadBuffer bytes.
inline constexpr std::size_t kReadBuffer = std::size_t{64} << 10;
inline void read_into_shared(uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    *buffer = uv_buf_init(static_cast<char*>(handle->loop->data), kReadBuffer);
}

// Closes a handle unless that has been done. The handle must stay in memory until `closed` has run.
template <class Handle>
void close_once(Handle* handle, uv_close_cb closed = nullptr) {
    auto* base = reinterpret_cast<uv_handle_t*>(handle);
    if (!uv_is_closing(base)) uv_close(base, closed);
}

}  // namespace libddp
