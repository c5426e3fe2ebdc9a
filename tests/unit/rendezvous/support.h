// Shared by the rendezvous tests: stores of all kinds, expected errors, raw sockets and child
// processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/protocol.h"
#include "rendezvous/store.h"
#include "support/slack.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "wire/channel.h"

namespace libddp::testing {

inline constexpr std::int64_t kLongMs =
    20'000;  // the bound of what must happen, also under a sanitizer on a busy machine

// The error that `call` throws; code DDP_OK if it throws none.
ErrorInfo error_of(const std::function<void()>& call);

// The code, and every part of the message.
void expect_error(ddp_status code, const std::vector<std::string>& parts,
                  const std::function<void()>& call);

std::int64_t elapsed_ms(std::chrono::steady_clock::time_point since);

// Polls until `condition` holds or kLongMs have passed.
bool eventually(const std::function<bool()>& condition);

// A port of 127.0.0.1 that nobody listens on and that the system gives to nobody else as long as
// the object lives. A server may listen there meanwhile. A port that a server has just closed may
// belong to another test by the time that it is used again.
class HeldPort {
public:
    HeldPort();
    ~HeldPort();
    HeldPort(const HeldPort&) = delete;
    HeldPort& operator=(const HeldPort&) = delete;
    std::string uri() const;

private:
    int socket_;
};

// A path in a fresh folder that goes with the object.
class TempPath {
public:
    TempPath();
    explicit TempPath(const std::string& beginning);  // of the folder's path
    ~TempPath();
    TempPath(const TempPath&) = delete;
    const std::string& file() const { return file_; }
    std::string uri() const { return "file://" + file_; }

private:
    std::string folder_;
    std::string file_;
};

std::shared_ptr<Store> open(const std::string& uri, bool is_server = false,
                            const std::string& secret = "", std::int64_t timeout_ms = kLongMs);

// A service of any kind that any number of stores can be opened to.
class Service {
public:
    virtual ~Service() = default;
    virtual std::shared_ptr<Store> connect() = 0;
    virtual std::string uri() const = 0;
};
// etcd_ttl_s: a busy machine may hold back a lease's renewal; less is for tests of deaths.
std::unique_ptr<Service> make_service(const std::string& kind, int etcd_ttl_s = 20);
std::vector<const char*> store_kinds();  // "tcp", "file", and "etcd" where there is one

// A blocking client socket without any protocol. Every call is bounded.
class RawSocket {
public:
    explicit RawSocket(int port, const std::string& from = "127.0.0.1");
    ~RawSocket();
    RawSocket(const RawSocket&) = delete;
    bool send(const std::string& bytes);          // false: the peer has closed
    std::string receive(std::size_t size);        // less if the peer closes
    bool closed_by_peer(std::int64_t within_ms);  // reads and drops what still comes

private:
    int fd_;
};

// A client that has passed the handshake, and then sends what it likes. Every call is bounded.
class RawClient {
public:
    explicit RawClient(int port, const std::string& secret = "",
                       const std::string& identity = store_identity());
    std::uint32_t version() const { return version_; }  // that the server says
    bool send(const std::string& bytes);                // false: the peer has closed
    // The bytes that the server takes within this time.
    std::size_t send_for(const std::string& bytes, std::int64_t ms);
    std::string receive(std::size_t size);  // less if the peer closes
    std::optional<Frame> receive_frame();   // none if the peer closes
    bool closed_by_peer(std::int64_t within_ms);

private:
    bool wait(short events, std::int64_t ms);
    std::unique_ptr<wire::Channel> channel_;
    std::uint32_t version_ = 0;
    FrameReader frames_;
};

// On a free port of 127.0.0.1; accept() waits.
Descriptor listen_here();

// Stands between one client and a server.
class Relay {
public:
    struct Options {
        std::string text;    // replaced wherever it is seen, unless it is empty
        std::string forged;  // as long
        // The pause after each 64 KiB, at most.
        std::chrono::milliseconds pause{1};
    };
    explicit Relay(int port) : Relay(port, Options()) {}
    Relay(int port, Options options);
    ~Relay() { thread_.join(); }  // when the client has closed its connection, or the server
    std::string uri() const;
    bool saw() const { return saw_; }
    std::size_t up() const { return up_; }
    std::size_t down() const { return down_; }

private:
    bool pass(int from, int to, std::atomic<std::size_t>& passed);

    const Options options_;
    const Descriptor listener_ = listen_here();
    std::atomic<bool> saw_{false};
    std::atomic<std::size_t> up_{0};
    std::atomic<std::size_t> down_{0};
    std::thread thread_;
};

// The first bytes of a client with this secret.
std::string client_hello(const std::string& secret);

// The helper program with these arguments.
class Child {
public:
    explicit Child(std::vector<std::string> arguments);
    ~Child();  // kills and reaps
    Child(const Child&) = delete;
    void kill();
    void stop_running() const;  // SIGSTOP
    int end();                  // SIGTERM; what wait() says of its end
    std::string read_line();    // of its standard output

private:
    pid_t pid_ = -1;
    int output_ = -1;
};

}  // namespace libddp::testing
