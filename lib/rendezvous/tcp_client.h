// The tcp store's client: how it connects; then one connection, one thread that reads and writes, any number of threads that call.
#pragma once

#include <uv.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/notifier.h"
#include "rendezvous/protocol.h"
#include "rendezvous/store_engine.h"
#include "util/deadline.h"

namespace libddp {

class TcpClient final : public StoreEngine {
public:
    // socket: connected and past the handshake (connect_to_server); owned from here on. call_timeout_ms: the bound of calls
    // that do not wait for others.
    TcpClient(int socket, std::string name, std::int64_t call_timeout_ms);
    ~TcpClient() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    bool answers(std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    void unwatch(Notifier::Id id) override;
    void close() override;

private:
    Outcome perform_within(Request request, std::int64_t bound_ms);
    // A request without its answer. Either a thread waits for it or a watch does.
    struct Pending {
        std::condition_variable answered;
        bool done = false;
        Outcome outcome;
        Notifier::Id watch = 0;
    };

    void check_usable() const;  // with mutex_ held; throws
    void enqueue(std::string bytes);
    void enqueue_cancel(std::uint64_t id);
    void finish_pending(ddp_status code, const std::string& message);

    // On the loop's thread.
    void start_reading();
    void flush();
    void say_goodbye();
    void close_handles();
    void receive(std::string_view bytes);
    void answer(std::uint64_t id, Outcome outcome);
    void lose(const std::string& reason, bool graceful);
    uv_stream_t* stream() { return reinterpret_cast<uv_stream_t*>(&socket_); }

    const std::string name_;
    const std::int64_t call_timeout_ms_;

    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<Pending>> pending_;
    std::map<Notifier::Id, std::uint64_t> watch_requests_;
    std::set<Notifier::Id> connection_watches_;
    std::vector<std::string> outgoing_;
    std::uint64_t next_id_ = 1;
    bool closed_ = false;
    bool lost_ = false;
    bool lost_gracefully_ = false;
    std::string lost_reason_;

    std::vector<char> read_buffer_;
    uv_loop_t loop_{};
    uv_tcp_t socket_{};
    uv_async_t wake_{};
    uv_timer_t farewell_{};
    FrameReader frames_;  // loop thread
    std::thread thread_;
    std::atomic<bool> close_called_{false};
    Notifier notifier_;
};

// Opens an authenticated connection to a store server: blocking and bounded. Retries with jittered, growing pauses until
// the server answers or the deadline passes: the server's process may start later than this one. Returns a connected
// socket that has passed the handshake; the caller owns it. Throws Error: UNAVAILABLE (nobody listens, or not a libddp
// store), TIMEOUT (no answer at all), PERMISSION_DENIED (other secret), UNSUPPORTED (other protocol version).
int connect_to_server(const std::string& host, int port, const std::string& secret, const Deadline& deadline);

// The same without another try.
int connect_once(const std::string& host, int port, const std::string& secret, const Deadline& deadline);

}  // namespace libddp
