// libuv handles as C++ objects. A handle's memory must outlive uv_close's callback, so it lives on
// the heap and frees itself there: the object that owns it may go away at any time.
#pragma once

#include <uv.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

namespace ddprun {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

template <class T>
struct CloseHandle {
    void operator()(T* handle) const noexcept {
        handle->data = nullptr;
        uv_close(reinterpret_cast<uv_handle_t*>(handle),
                 [](uv_handle_t* closed) { delete reinterpret_cast<T*>(closed); });
    }
};

// Holds initialised handles only.
template <class T>
using Handle = std::unique_ptr<T, CloseHandle<T>>;

class Timer {
public:
    Timer(uv_loop_t* loop, std::function<void()> fire);
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    void start(Milliseconds period);
    void stop();

private:
    std::function<void()> fire_;
    Handle<uv_timer_t> handle_;
};

// Afterwards the signal stays blocked in this thread. The program ends then and has its status,
// which a second Ctrl-C may not change: libuv gives a signal that nobody watches its default action
// back.
class SignalWatch {
public:
    // Throws std::runtime_error if the system refuses.
    SignalWatch(uv_loop_t* loop, int signal, std::function<void(int)> seen);
    ~SignalWatch();
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;

private:
    std::function<void(int)> seen_;
    Handle<uv_signal_t> handle_;
};

struct PipeEnds {
    int read;
    int write;
};

// Flags: 0 or UV_NONBLOCK_PIPE. Throws std::runtime_error if the system refuses.
PipeEnds make_pipe(int read_flags, int write_flags);

// The reading end of a pipe.
class ReadPipe {
public:
    using Data = std::function<void(std::string_view)>;

    // Takes over `descriptor`. `end` is called when the pipe has no writers left. Throws
    // std::runtime_error if libuv refuses.
    ReadPipe(uv_loop_t* loop, int descriptor, Data data, std::function<void()> end);
    ReadPipe(const ReadPipe&) = delete;
    ReadPipe& operator=(const ReadPipe&) = delete;

    void pause();
    void resume();
    // Reads what is in the pipe now, without waiting for the loop to come round to it.
    void drain();
    // Closes the pipe; neither data nor end is called any more.
    void close();
    bool ended() const { return handle_ == nullptr; }

private:
    void on_read(ssize_t size, const char* bytes);

    Data data_;
    std::function<void()> end_;
    Handle<uv_pipe_t> handle_;
    bool paused_ = true;
};

}  // namespace ddprun
