// A store: what groups and the C ABI see of a rendezvous service. Semantics: include/ddp/store.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "util/deadline.h"
#include "util/process.h"

namespace libddp {

struct StoreConfig {
    std::string uri;         // "tcp://host:port", "file:///path" or "etcd://host:port/name"
    bool is_server = false;  // tcp: also run the server in this process
    std::int64_t timeout_ms = kDefaultTimeoutMs;
    // nullopt: the environment's (rendezvous/secret.h); empty: none
    std::optional<std::string> secret = std::nullopt;
    // tcp: needs no secret, etcd: no TLS, whatever the address is
    bool insecure = false;
    // tcp: what the launcher calls the job. Processes of another one have another secret
    std::string job = "";
    std::size_t clients = 0;  // of a server: how many other processes are known to connect
};

class StoreEngine;
struct Request;
struct Outcome;

// Every method may be called from any thread, several at once. Failures throw libddp::Error.
// timeout_ms: 0 takes the store's default, negative does not wait.
class Store {
public:
    using Keys = std::vector<std::string>;

    // config: how a client reaches the service again. description: "tcp://127.0.0.1:29500", for
    // messages.
    Store(std::shared_ptr<StoreEngine> engine, StoreConfig config, std::string description);
    Store(const Store& owner, std::int64_t within_ms);  // owner.bounded(within_ms)
    ~Store();

    void set(const std::string& key, std::string_view value);
    std::string get(const std::string& key, std::int64_t timeout_ms = 0);
    std::string compare_set(const std::string& key, std::string_view expected,
                            std::string_view desired);
    std::int64_t add(const std::string& key, std::int64_t amount);
    bool check(const Keys& keys);
    void wait(const Keys& keys, std::int64_t timeout_ms = 0);
    bool remove(const std::string& key);
    Keys list_keys(const std::string& prefix);

    // A last will: once this client's connection ends without remove_will (the process died), the
    // store sets `key` to `value` on its behalf if the key does not exist yet. With a holder_key
    // the will counts only if that key then has the value `holder`, so that a process can leave it
    // before it takes what the will is about. Acknowledged: in force when the call returns.
    void set_will(const std::string& key, std::string_view value,
                  const std::string& holder_key = "", std::string_view holder = "");
    void remove_will(const std::string& key);
    // How long after the death of a process its wills may still be to come, beyond what a message
    // takes.
    std::int64_t notices_death_ms() const;

    // Makes a number of the service at least this, and returns it: it never becomes smaller. On
    // etcd and in a file it outlives everything else in the store. A tcp store begins with 0. Does
    // not wait for others.
    std::int64_t raise_fence(std::int64_t at_least);

    // Until when (boot_ms) the service cannot take this process for dead, as far as its answers
    // tell: counted from when what it has answered was sent, because the service may have heard
    // nothing since. Asks nothing, so the answer may be in the past.
    std::int64_t alive_until_ms() const;

    // Calls `seen(value)` once, on a thread of the store, when `key` exists (soon, if it does
    // already). `seen` must not call the store's waiting methods. unwatch returns only when no call
    // is running and none will come; it may not be called from inside `seen`.
    using Watch = std::uint64_t;
    Watch watch(const std::string& key, std::function<void(std::string value)> seen);
    void unwatch(Watch watch);

    // Calls `lost(reason, graceful)` once, on a thread of the store, if the service becomes
    // unreachable. graceful: the server said that it was ending on purpose. A file store never
    // calls it.
    Watch watch_connection(std::function<void(std::string reason, bool graceful)> lost);

    // Ends the connection, and the server if this store runs it, as the destructor does: calls in
    // other threads fail with ABORTED at once, and so do later ones. For an owner whose threads
    // share the store. Idempotent, at most 1 s.
    void close();

    // Whether the service answers within this time. Throws if it is known to be gone: this is for
    // one that is stopped.
    bool answers(std::int64_t within_ms);

    // Another connection to the same service, which must answer within this time. Throws if it does
    // not: so a caller whose connection was lost can tell a cut connection from a service that is
    // gone.
    std::shared_ptr<Store> reconnect(std::int64_t within_ms);

    // The same service over the same connection, which stays this store's: a call that does not
    // wait for a key fails with TIMEOUT after this time. For a caller that must not stay if the
    // service is stopped.
    std::shared_ptr<Store> bounded(std::int64_t within_ms);

    int port() const;  // of the server, tcp only; -1
    const std::string& describe() const { return description_; }

private:
    Outcome call(Request request) const;
    std::int64_t resolve(std::int64_t timeout_ms) const;

    // Calls copy the pointer: a thread that is still in one keeps the engine alive while this
    // object goes away.
    std::shared_ptr<StoreEngine> engine_;
    const StoreConfig config_;
    const std::string description_;
    const bool owns_connection_;
    const std::int64_t within_ms_;  // 0: as long as the engine allows
};

// Makes sure that the libraries under the stores are torn down after the static object that calls
// this in its constructor: one that still owns a server when the process exits.
void prepare_stores();

// Opens the store that config.uri names. Throws Error.
std::shared_ptr<Store> open_store(StoreConfig config);

// As Store::describe() of a client.
std::string store_name(const std::string& uri);

// Sets a key of a tcp store that does not exist yet, for a process that has too few descriptors for
// open_store(): one connection, one attempt, no thread. Throws Error.
void set_without_client(StoreConfig config, const std::string& key, std::string_view value,
                        std::int64_t within_ms);

}  // namespace libddp

// The ddp_store of the C ABI.
struct ddp_store {
    std::shared_ptr<libddp::Store> impl;
    bool owned = false;  // made by ddp_store_create; otherwise a group's
    libddp::Origin origin{};
};
