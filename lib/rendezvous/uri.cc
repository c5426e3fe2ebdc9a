#include "rendezvous/uri.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "rendezvous/file_store.h"
#include "rendezvous/secret.h"
#include "rendezvous/store.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/tcp_client.h"
#include "rendezvous/tcp_server.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

template <class... Parts>
[[noreturn]] void reject(const std::string& uri, const Parts&... parts) {
    fail(DDP_ERROR_INVALID_ARGUMENT, "uri: '", uri, "' ", parts...);
}

int parse_port(const std::string& uri, std::string_view text) {
    if (text.empty()) reject(uri, "has no port: write tcp://host:port");
    bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) reject(uri, "has the port '", text, "', which is not a number");
    int port = 0;
    for (char digit : text) {
        port = port * 10 + (digit - '0');
        if (port > 65535) reject(uri, "has the port ", text, ", which is above 65535");
    }
    return port;
}

StoreUri parse_tcp(const std::string& uri) {
    std::string_view rest = std::string_view(uri).substr(kTcp.size());
    StoreUri parsed;
    std::string_view port;
    if (rest.starts_with('[')) {
        auto bracket = rest.find(']');
        if (bracket == std::string_view::npos) reject(uri, "has '[' without ']'");
        parsed.host = rest.substr(1, bracket - 1);
        std::string_view after = rest.substr(bracket + 1);
        if (!after.empty() && after.front() != ':') reject(uri, "has '", after, "' where ':port' should be");
        port = after.empty() ? after : after.substr(1);
    } else {
        auto colon = rest.find(':');
        parsed.host = rest.substr(0, colon);
        port = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
        if (port.find(':') != std::string_view::npos)
            reject(uri, "has more than one ':'; an IPv6 address is written in brackets: tcp://[address]:port");
    }
    if (parsed.host.empty()) reject(uri, "has no host: write tcp://host:port");
    parsed.port = parse_port(uri, port);
    return parsed;
}

StoreUri parse_file(const std::string& uri) {
    StoreUri parsed;
    parsed.is_file = true;
    parsed.path = uri.substr(kFile.size());
    if (parsed.path.empty()) reject(uri, "has no path: write file:///absolute/path");
    if (parsed.path.front() != '/')
        reject(uri, "names a relative path; an absolute one has three slashes: file:///absolute/path");
    if (parsed.path.back() == '/') reject(uri, "names a folder; it must name a file, which libddp creates");
    if (parsed.path.find('\0') != std::string::npos) reject(uri, "has a NUL byte in the path");
    return parsed;
}

}  // namespace

StoreUri parse_store_uri(const std::string& uri) {
    if (uri.empty()) fail(DDP_ERROR_INVALID_ARGUMENT, "uri: is empty; write tcp://host:port or file:///path");
    if (uri.starts_with(kTcp)) return parse_tcp(uri);
    if (uri.starts_with(kFile)) return parse_file(uri);
    reject(uri, "is of no known kind; write tcp://host:port or file:///path");
}

std::string tcp_uri(const std::string& host, int port) {
    bool v6 = host.find(':') != std::string::npos;
    return str(kTcp, v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

// open_store: from an address to a connected store.

namespace {

// A client together with the server that it belongs to.
class HostingEngine final : public StoreEngine {
public:
    HostingEngine(std::unique_ptr<TcpServer> server, std::unique_ptr<TcpClient> client)
        : server_(std::move(server)), client_(std::move(client)) {}
    ~HostingEngine() override { HostingEngine::close(); }

    Outcome perform(Request request, std::int64_t within_ms) override {
        return client_->perform(std::move(request), within_ms);
    }
    bool answers(std::int64_t within_ms) override { return client_->answers(within_ms); }
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override {
        return client_->watch(key, std::move(seen));
    }
    Notifier::Id watch_connection(Notifier::Callback lost) override {
        return client_->watch_connection(std::move(lost));
    }
    void unwatch(Notifier::Id id) override { client_->unwatch(id); }
    // The client first, so that its end is a farewell and not a lost connection.
    void close() override {
        client_->close();
        server_->stop();
    }
    int port() const override { return server_->port(); }

private:
    std::unique_ptr<TcpServer> server_;
    std::unique_ptr<TcpClient> client_;
};

// A server answers at once what does not wait for others; even a very busy one does not take longer than 10 s.
std::int64_t call_bound(const StoreConfig& config) {
    return std::min<std::int64_t>(config.timeout_ms, 10'000);
}

std::shared_ptr<Store> client_of(std::unique_ptr<wire::Channel> channel, const StoreConfig& config) {
    auto client = std::make_shared<TcpClient>(std::move(channel), config.uri, call_bound(config));
    return std::make_shared<EngineStore>(std::move(client), config, config.uri);
}

// config.secret: open_store has found it.
std::shared_ptr<Store> host_tcp(const StoreUri& uri, StoreConfig config, const Deadline& deadline) {
    const std::string& secret = config.secret.value();
    auto server = std::make_unique<TcpServer>(uri.host, uri.port, secret, deadline);
    std::string name = tcp_uri(uri.host, server->port());
    auto channel = connect_to_server(server->local_host(), server->port(), secret, deadline);
    auto client = std::make_unique<TcpClient>(std::move(channel), name, call_bound(config));
    config.uri = tcp_uri(server->local_host(), server->port());
    auto engine = std::make_shared<HostingEngine>(std::move(server), std::move(client));
    return std::make_shared<EngineStore>(std::move(engine), std::move(config), std::move(name));
}

}  // namespace

std::shared_ptr<Store> open_store(StoreConfig config) {
    const StoreUri uri = parse_store_uri(config.uri);
    config.timeout_ms =
        config.timeout_ms <= 0 ? StoreConfig().timeout_ms : std::min(config.timeout_ms, limits::kLongestWaitMs);
    if (uri.is_file) {
        if (config.is_server)
            fail(DDP_ERROR_INVALID_ARGUMENT, "is_server: a file store has no server; is_server is for tcp:// only");
        auto engine = std::make_shared<FileStore>(uri.path, config.timeout_ms);
        std::string name = config.uri;
        return std::make_shared<EngineStore>(std::move(engine), std::move(config), std::move(name));
    }
    if (!config.is_server) {
        if (uri.port == 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: '", config.uri, "' has port 0, which only a server can choose");
        interrupt::refuse_inside_check();
        config.uri = tcp_uri(uri.host, uri.port);
    }
    const auto deadline = Deadline::after_ms(config.timeout_ms);
    config.secret = job_secret(config, deadline);
    if (config.is_server) return host_tcp(uri, std::move(config), deadline);
    return client_of(connect_to_server(uri.host, uri.port, config.secret.value(), deadline), config);
}

std::shared_ptr<Store> reopen_store(StoreConfig config, std::int64_t within_ms) {
    const StoreUri uri = parse_store_uri(config.uri);
    config.is_server = false;
    if (uri.is_file) return open_store(std::move(config));
    return client_of(connect_once(uri.host, uri.port, config.secret.value(), Deadline::after_ms(within_ms)), config);
}

}  // namespace libddp
