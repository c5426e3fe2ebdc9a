// How a link carries out collectives on the memory of one device, on streams of its own: enqueued by a backend that takes
// such memory, through host memory by one that does not, and by itself where there is one rank.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/transport.h"
#include "device/stream.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

// Looks after operations that a backend has only enqueued on a device: nobody waits in them, but somebody must notice when
// one fails or does not end, and keep what it uses until it has ended.
class StreamWatch {
public:
    struct Entry {
        EventPtr begin, end;  // of the operation on its stream
        std::int64_t timeout_ms = 0;
        std::shared_ptr<const void> memory;  // what it reads and writes
        std::string what;                    // for messages
        std::optional<Deadline> deadline;    // counted from when the device came to `begin`
    };

    // check: throws what has failed in the backend meanwhile. fail: is told once what went wrong, on the watch's thread.
    StreamWatch(std::function<void()> check, std::function<void(const ErrorInfo&, const std::string& what)> fail);
    ~StreamWatch();  // what has not ended by now is kept for ever
    StreamWatch(const StreamWatch&) = delete;
    StreamWatch& operator=(const StreamWatch&) = delete;

    void add(Entry entry);
    // Waits until everything has ended; false if the deadline passed first.
    bool drain(const Deadline& deadline);
    // Nothing that happens from now on is a failure.
    void stop_checking();
    bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
    void loop();
    ErrorInfo look(std::string& what);
    void remove_ended(std::unique_lock<std::mutex>& lock);

    const std::function<void()> check_;
    const std::function<void(const ErrorInfo&, const std::string&)> fail_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry> entries_;
    bool checking_ = true;
    bool stopping_ = false;
    std::thread thread_;
};

class DevicePath {
public:
    struct Config {
        ddp_device device{};
        Transport* on_device = nullptr;  // null: the backend takes host memory only
        Transport* on_host = nullptr;
        StreamWatch* watch = nullptr;  // with on_device
        std::int32_t rank = 0, world = 1;
        std::function<void()> look;  // throws when the group is broken
    };
    // Where a collective was submitted.
    struct Submitted {
        const DeviceStream& stream;
        const DeviceEvent& begin;  // where `stream` was when the collective was submitted
        std::shared_ptr<const void> memory;
        std::string what;
    };

    explicit DevicePath(Config config);
    ~DevicePath();

    // The result is there in the order of submitted.stream when this returns. scale_after: what the backend does not
    // multiply with; before an allreduce of floating-point numbers, after everything else.
    void run(ddp_collective collective, double scale_after, const Submitted& submitted);

private:
    class HostRelay;

    void enqueue(const ddp_collective& collective, const Submitted& submitted);
    void run_alone(const ddp_collective& collective);
    void give_back_order(const Submitted& submitted) const;

    const Config config_;
    const StreamPtr stream_;
    std::unique_ptr<HostRelay> relay_;  // null: the backend takes device memory, or there is one rank
};

}  // namespace libddp
