// Looks after operations that a backend has only enqueued on a device: nobody waits in them, but
// somebody must notice when one fails or does not end, and keep what it uses until it has ended.
//
// The functions of a device may not return themselves: CUDA's may wait for a thread that allocates
// memory, which waits for a kernel, which waits for another rank. So one thread asks the device,
// and another one, which never does, watches the time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "comm/signature.h"
#include "device/stream.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

class StreamWatch {
public:
    struct Entry {
        EventPtr begin, end;  // of the operation on its stream
        std::int64_t timeout_ms = 0;
        std::shared_ptr<const void> memory;  // what it reads and writes
        Signature what{};                    // for errors
        std::optional<Deadline> deadline;    // counted from when the device came to `begin`
    };

    // check: throws what has failed in the backend meanwhile. fail: is told once what went wrong,
    // on one of the watch's threads.
    StreamWatch(std::function<void()> check,
                std::function<void(const ErrorInfo&, const Signature& what)> fail);
    ~StreamWatch();  // what has not ended by now is kept for ever
    StreamWatch(const StreamWatch&) = delete;
    StreamWatch& operator=(const StreamWatch&) = delete;

    // Looks after the operation that `call` enqueues, which sets `begin` and `end`; or neither,
    // where it is enqueued into a graph. It fails as well if `call` does not return within a second
    // after the operation's own timeout.
    void enqueue(Entry entry, const std::function<void(Entry&)>& call);
    // Waits until everything has ended; false if the deadline passed first.
    bool drain(const Deadline& deadline);
    // Nothing that happens from now on is a failure.
    void stop_checking();
    // Ends the watch. False: the device has not answered within a second.
    bool stop();
    bool on_own_thread() const;

private:
    struct Shared;

    const std::shared_ptr<Shared> shared_;  // also of a thread that the device does not let go
    std::thread asker_, timer_;
};

}  // namespace libddp
