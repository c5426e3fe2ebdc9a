#include "rendezvous/loop_thread.h"

#include <utility>

#include "util/descriptors.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"

namespace libddp {

LoopThread::LoopThread(const char* owner, std::function<void()> woken)
    : woken_(std::move(woken)), buffer_(std::make_unique_for_overwrite<char[]>(kReadBuffer)) {
    // libuv ends the process if the first loop cannot open the pipe of its signal handling. It
    // opens so many descriptors.
    constexpr std::size_t kDescriptors = 6;
    static Mutex mutex;
    const Lock lock(mutex);
    require_descriptors(kDescriptors, owner);
    if (int status = uv_loop_init(&loop_); status != 0) cannot_start(owner, -status);
    uv_async_init(&loop_, &wake_,
                  [](uv_async_t* wake) { static_cast<LoopThread*>(wake->data)->woken_(); });
    wake_.data = this;
}

LoopThread::~LoopThread() {
    if (stopped_) return;
    end();
    uv_run(&loop_, UV_RUN_DEFAULT);
    uv_loop_close(&loop_);
}

void LoopThread::start(const std::function<void()>& prepare) {
    try {
        prepare();
        thread_ = quiet_thread([this] {
            uv_run(&loop_, UV_RUN_DEFAULT);
            wire::release_thread_state();
        });
    } catch (...) {
        end();
        uv_run(&loop_, UV_RUN_DEFAULT);
        throw;
    }
}

void LoopThread::wake() {
    const Lock lock(mutex_);
    if (!ended_) uv_async_send(&wake_);
}

void LoopThread::end() {
    const Lock lock(mutex_);
    ended_ = true;
    const auto close = [](uv_handle_t* handle, void*) {
        if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
    };
    uv_walk(&loop_, close, nullptr);
}

void LoopThread::stop() {
    if (stopped_.exchange(true)) return;
    wake();
    thread_.join();
    uv_loop_close(&loop_);
}

}  // namespace libddp
