// From an address to a store, and to another connection.
#include <algorithm>
#include <memory>
#include <utility>

#include "rendezvous/file_store.h"
#include "rendezvous/secret.h"
#include "rendezvous/store.h"
#include "rendezvous/store_module.h"
#include "rendezvous/tcp_client.h"
#include "rendezvous/tcp_dial.h"
#include "rendezvous/tcp_server.h"
#include "rendezvous/uri.h"
#include "util/deadline.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

// A server answers at once what does not wait for others; even a very busy one does not take longer
// than 10 s.
std::int64_t call_bound(const StoreConfig& config) {
    return std::min<std::int64_t>(config.timeout_ms, 10'000);
}

// Descriptors of a server, and of this process's client. Most of them are those of the two event
// loops.
constexpr std::size_t kToHost = 20;

std::shared_ptr<Store> make_store(std::shared_ptr<StoreEngine> engine, const StoreConfig& config) {
    return std::make_shared<Store>(std::move(engine), config, config.uri);
}

std::shared_ptr<Store> client_of(std::unique_ptr<wire::Channel> channel, int port,
                                 const StoreConfig& config) {
    return make_store(
        std::make_shared<TcpClient>(std::move(channel), config.uri, port, call_bound(config)),
        config);
}

// config.secret: open_store has found it.
std::shared_ptr<Store> host_tcp(const StoreUri& uri, StoreConfig config, const Deadline& deadline) {
    const std::string& secret = config.secret.value();
    // Before ranks can connect with a server that then cannot go on.
    require_descriptors(kToHost + config.clients,
                        str("the store at ", tcp_uri(uri.host, uri.port),
                            config.clients == 0 ? "" : str(" for ", config.clients + 1, " ranks")));
    auto server = std::make_unique<TcpServer>(uri.host, uri.port, secret, deadline);
    const int port = server->port();
    const std::string name = tcp_uri(uri.host, port);
    config.uri = tcp_uri(server->local_host(), port);
    auto channel = connect_to_server(server->local_host(), port, secret, deadline);
    auto client = std::make_shared<TcpClient>(std::move(channel), name, port, call_bound(config),
                                              std::move(server));
    return std::make_shared<Store>(std::move(client), std::move(config), name);
}

std::shared_ptr<Store> open_etcd(const EtcdAddress& address, const StoreConfig& config) {
    interrupt::refuse_inside_check();
    const auto deadline = Deadline::after_ms(config.timeout_ms);
    require_protection(config, address, deadline);
    return make_store(
        etcd_module(config.uri).open(address, config.uri, call_bound(config), deadline), config);
}

}  // namespace

void prepare_stores() {
    wire::prepare_cryptography();
}

std::shared_ptr<Store> open_store(StoreConfig config) {
    occupy_standard_descriptors();
    const StoreUri uri = parse_store_uri(config.uri);
    config.timeout_ms = config.timeout_ms <= 0 ? StoreConfig().timeout_ms
                                               : std::min(config.timeout_ms, kLongestWaitMs);
    if (config.is_server && (uri.is_file || uri.etcd))
        fail(DDP_ERROR_INVALID_ARGUMENT, "is_server: '", config.uri,
             "' has no server in libddp; is_server is for tcp:// only");
    if (uri.is_file)
        return make_store(std::make_shared<FileStore>(uri.path, config.timeout_ms), config);
    if (uri.etcd) return open_etcd(*uri.etcd, config);
    if (!config.is_server) {
        if (uri.port == 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: '", config.uri,
                 "' has port 0, which only a server can choose");
        interrupt::refuse_inside_check();
        config.uri = tcp_uri(uri.host, uri.port);
    }
    const auto deadline = Deadline::after_ms(config.timeout_ms);
    config.secret = job_secret(config, deadline);
    if (config.is_server) return host_tcp(uri, std::move(config), deadline);
    return client_of(connect_to_server(uri.host, uri.port, config.secret.value(), deadline),
                     uri.port, config);
}

// One attempt. Mostly the thread of a monitor calls this, perhaps while the process ends.
std::shared_ptr<Store> Store::reconnect(std::int64_t within_ms) {
    const wire::BriefCryptography inside;
    StoreConfig config = config_;
    const StoreUri uri = parse_store_uri(config.uri);
    config.is_server = false;
    if (uri.etcd) config.timeout_ms = within_ms;
    if (uri.etcd || uri.is_file) return open_store(std::move(config));
    return client_of(
        connect_once(uri.host, uri.port, config.secret.value(), Deadline::after_ms(within_ms)),
        uri.port, config);
}

std::string store_name(const std::string& uri) {
    const StoreUri parsed = parse_store_uri(uri);
    return parsed.is_file || parsed.etcd ? uri : tcp_uri(parsed.host, parsed.port);
}

void set_without_client(StoreConfig config, const std::string& key, std::string_view value,
                        std::int64_t within_ms) {
    const StoreUri uri = parse_store_uri(config.uri);
    if (uri.is_file || uri.etcd)
        fail(DDP_ERROR_UNSUPPORTED, "only a tcp store takes a key without a client");
    const auto deadline = Deadline::after_ms(within_ms);
    const std::string secret = job_secret(config, deadline);
    ask_once(uri.host, uri.port, secret, Request{Op::kCompareSet, {key}, {"", std::string(value)}},
             deadline);
}

}  // namespace libddp
