// The store as the launcher uses it: libddp's public C interface with exceptions. Every failure is
// a std::runtime_error that carries the library's message.
#pragma once

#include <ddp/store.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "loop.h"

namespace ddprun {

// How long node 0 waits for a node that never came, and a node for node 0, without --timeout: the
// time that libddp gives ranks to join.
constexpr Milliseconds kJoinTime{300'000};

// An address of the store.
struct Endpoint {
    std::string host;
    int port = 0;

    // "tcp://host:port", an IPv6 address in brackets.
    std::string uri() const;
};

// Reads "host:port" or "[address]:port". Empty if the text is neither.
std::optional<Endpoint> parse_endpoint(const std::string& text, int least_port = 1);

// A failure of the store.
class StoreError : public std::runtime_error {
public:
    StoreError(ddp_status status, const std::string& message)
        : std::runtime_error(message), status_(status) {}
    // The server may still come.
    bool is_absence() const {
        return status_ == DDP_ERROR_TIMEOUT || status_ == DDP_ERROR_UNAVAILABLE;
    }
    // The store was open, its connection has ended, and it does not come back.
    bool is_loss() const { return status_ == DDP_ERROR_UNAVAILABLE; }

private:
    ddp_status status_;
};

// The loopback address that `host` stands for on this machine, if it is a name that does not tell,
// as Debian has the machine's own name at 127.0.1.1. "": it has another address, or none. For a
// name that was just looked up: it waits for the resolver.
std::string hidden_loopback(const std::string& host);

class Store {
public:
    // Runs a server that binds `address`. Waits at most `bound` for the name to become this host's,
    // and no longer once `interrupted`, which is asked again and again, returns true.
    static Store serve(const Endpoint& address, const std::string& secret, Milliseconds bound,
                       std::function<bool()> interrupted = nullptr);
    // uri: of any store. Waits at most `bound` for its server. If that is not there at once, calls
    // `on_absence` with the reason, one time.
    static Store connect(const std::string& uri, const std::string& secret, Milliseconds bound,
                         const std::function<void(const std::string& why)>& on_absence);

    int port() const;
    void set(const std::string& key, const std::string& value);
    // Empty if there is no such key now.
    std::optional<std::string> get(const std::string& key);
    // Waits for the key, for as long as a call may take.
    std::string await(const std::string& key);
    std::int64_t add(const std::string& key, std::int64_t amount);
    // The keys that begin with `prefix`, sorted.
    std::vector<std::string> list(const std::string& prefix);

private:
    struct Free {
        void operator()(ddp_store* store) const noexcept { ddp_store_free(store); }
    };

    static Store open(const std::string& uri, const std::string& secret, bool serve,
                      Milliseconds bound);
    explicit Store(ddp_store* store) : store_(store) {}

    std::unique_ptr<ddp_store, Free> store_;
};

}  // namespace ddprun
