#include "loop.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>

namespace ddprun {
namespace {

constexpr std::size_t kReadSize = std::size_t{64} * 1024;
// A rank's own last words fit in its pipe; more than this comes from processes that it left behind
// and that still write.
constexpr std::size_t kDrainLimit = std::size_t{1024} * 1024;

// One buffer serves every pipe: the loop has one thread and each read is consumed before the next.
char read_buffer[kReadSize];

void check(int status, const char* what) {
    if (status < 0) throw std::runtime_error(std::string(what) + ": " + uv_strerror(status));
}

}  // namespace

Timer::Timer(uv_loop_t* loop, std::function<void()> fire)
    : fire_(std::move(fire)), handle_(new uv_timer_t) {
    uv_timer_init(loop, handle_.get());
    handle_->data = this;
}

void Timer::start(Milliseconds period) {
    if (uv_is_active(reinterpret_cast<uv_handle_t*>(handle_.get()))) return;
    const auto count = static_cast<std::uint64_t>(period.count());
    uv_timer_start(
        handle_.get(), [](uv_timer_t* timer) { static_cast<Timer*>(timer->data)->fire_(); }, count,
        count);
}

void Timer::stop() {
    uv_timer_stop(handle_.get());
}

SignalWatch::SignalWatch(uv_loop_t* loop, int signal, std::function<void(int)> seen)
    : seen_(std::move(seen)), handle_(new uv_signal_t) {
    uv_signal_init(loop, handle_.get());
    handle_->data = this;
    check(uv_signal_start(
              handle_.get(),
              [](uv_signal_t* watch, int number) {
                  static_cast<SignalWatch*>(watch->data)->seen_(number);
              },
              signal),
          "cannot watch for signals");
    uv_unref(reinterpret_cast<uv_handle_t*>(handle_.get()));
}

SignalWatch::~SignalWatch() {
    sigset_t its;
    sigemptyset(&its);
    sigaddset(&its, handle_->signum);
    pthread_sigmask(SIG_BLOCK, &its, nullptr);
}

PipeEnds make_pipe(int read_flags, int write_flags) {
    uv_file ends[2];
    check(uv_pipe(ends, read_flags, write_flags), "cannot make a pipe");
    return {ends[0], ends[1]};
}

ReadPipe::ReadPipe(uv_loop_t* loop, int descriptor, Data data, std::function<void()> end)
    : data_(std::move(data)), end_(std::move(end)), handle_(new uv_pipe_t) {
    uv_pipe_init(loop, handle_.get(), 0);
    handle_->data = this;
    const int status = uv_pipe_open(handle_.get(), descriptor);
    if (status < 0) ::close(descriptor);
    check(status, "cannot watch a pipe");
    resume();
}

void ReadPipe::resume() {
    if (!handle_ || !paused_) return;
    paused_ = false;
    check(uv_read_start(
              reinterpret_cast<uv_stream_t*>(handle_.get()),
              [](uv_handle_t*, std::size_t, uv_buf_t* buffer) {
                  *buffer = uv_buf_init(read_buffer, kReadSize);
              },
              [](uv_stream_t* stream, ssize_t size, const uv_buf_t* buffer) {
                  static_cast<ReadPipe*>(stream->data)->on_read(size, buffer->base);
              }),
          "cannot read a pipe");
}

void ReadPipe::pause() {
    if (!handle_ || paused_) return;
    paused_ = true;
    uv_read_stop(reinterpret_cast<uv_stream_t*>(handle_.get()));
}

void ReadPipe::drain() {
    uv_os_fd_t descriptor = -1;
    if (!handle_ || uv_fileno(reinterpret_cast<uv_handle_t*>(handle_.get()), &descriptor) != 0)
        return;
    for (std::size_t total = 0; handle_ && total < kDrainLimit;) {
        const ssize_t size = ::read(descriptor, read_buffer, kReadSize);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) return;
        total += static_cast<std::size_t>(size);
        on_read(size == 0 ? static_cast<ssize_t>(UV_EOF) : size, read_buffer);
    }
}

void ReadPipe::close() {
    handle_.reset();
}

void ReadPipe::on_read(ssize_t size, const char* bytes) {
    if (size > 0) {
        data_(std::string_view(bytes, static_cast<std::size_t>(size)));
    } else if (size < 0) {
        close();
        end_();
    }
}

}  // namespace ddprun
