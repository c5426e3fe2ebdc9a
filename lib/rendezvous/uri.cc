#include "rendezvous/uri.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include "rendezvous/file_store.h"
#include "rendezvous/secret.h"
#include "rendezvous/store.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/store_module.h"
#include "rendezvous/tcp_client.h"
#include "rendezvous/tcp_server.h"
#include "util/deadline.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";
constexpr std::string_view kEtcd = "etcd://";
constexpr std::string_view kEtcds = "etcds://";
constexpr std::string_view kEtcdForm = "etcd://host:port/name";
constexpr std::string_view kForms = "tcp://host:port, file:///path or etcd://host:port/name";

template <class... Parts>
[[noreturn]] void reject(const std::string& uri, const Parts&... parts) {
    fail(DDP_ERROR_INVALID_ARGUMENT, "uri: '", uri, "' ", parts...);
}

int parse_port(const std::string& uri, std::string_view text, std::string_view form) {
    if (text.empty()) reject(uri, "has no port: write ", form);
    bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) reject(uri, "has the port '", text, "', which is not a number");
    int port = 0;
    for (char digit : text) {
        port = port * 10 + (digit - '0');
        if (port > 65535) reject(uri, "has the port ", text, ", which is above 65535");
    }
    return port;
}

// form: how the address is written, for messages.
HostAndPort parse_host_and_port(const std::string& uri, std::string_view text, std::string_view form) {
    HostAndPort parsed;
    std::string_view port;
    if (text.starts_with('[')) {
        auto bracket = text.find(']');
        if (bracket == std::string_view::npos) reject(uri, "has '[' without ']'");
        parsed.host = text.substr(1, bracket - 1);
        std::string_view after = text.substr(bracket + 1);
        if (!after.empty() && after.front() != ':') reject(uri, "has '", after, "' where ':port' should be");
        port = after.empty() ? after : after.substr(1);
    } else {
        auto colon = text.find(':');
        parsed.host = text.substr(0, colon);
        port = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
        if (port.find(':') != std::string_view::npos)
            reject(uri,
                   "has more than one ':'; an IPv6 address is written in brackets: ", form.substr(0, form.find("host")),
                   "[address]:port");
    }
    if (parsed.host.empty()) reject(uri, "has no host: write ", form);
    parsed.port = parse_port(uri, port, form);
    return parsed;
}

StoreUri parse_tcp(const std::string& uri) {
    StoreUri parsed;
    HostAndPort at = parse_host_and_port(uri, std::string_view(uri).substr(kTcp.size()), "tcp://host:port");
    parsed.host = std::move(at.host);
    parsed.port = at.port;
    return parsed;
}

void parse_etcd_option(const std::string& uri, std::string_view option, EtcdAddress& etcd) {
    const auto equals = option.find('=');
    const std::string_view name = option.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : option.substr(equals + 1));
    if (name == "tls" && equals == std::string_view::npos) {
        etcd.tls = true;
    } else if (name == "cacert" || name == "cert" || name == "key") {
        if (value.empty() || value.front() != '/') reject(uri, "has '", option, "', which is no absolute path");
        (name == "cacert" ? etcd.cacert : name == "cert" ? etcd.cert : etcd.key) = value;
    } else if (name == "ttl") {
        const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), etcd.ttl_s);
        if (code != std::errc() || end != value.data() + value.size() || etcd.ttl_s < 1 || etcd.ttl_s > 3600)
            reject(uri, "has '", option, "'; ttl is a number of seconds from 1 to 3600");
    } else {
        reject(uri, "has the option '", option, "'; there are ttl=SECONDS, tls, cacert=FILE, cert=FILE and key=FILE");
    }
}

StoreUri parse_etcd(const std::string& uri) {
    EtcdAddress etcd;
    etcd.tls = uri.starts_with(kEtcds);
    std::string_view rest = std::string_view(uri).substr((etcd.tls ? kEtcds : kEtcd).size());
    const auto question = rest.find('?');
    std::string_view options = question == std::string_view::npos ? std::string_view() : rest.substr(question + 1);
    rest = rest.substr(0, question);
    const auto slash = rest.find('/');
    std::string_view endpoints = rest.substr(0, slash);
    etcd.name = slash == std::string_view::npos ? "" : rest.substr(slash + 1);

    for (bool more = true; more;) {
        const auto comma = endpoints.find(',');
        etcd.endpoints.push_back(parse_host_and_port(uri, endpoints.substr(0, comma), kEtcdForm));
        if (etcd.endpoints.back().port == 0) reject(uri, "has port 0");
        more = comma != std::string_view::npos;
        if (more) endpoints.remove_prefix(comma + 1);
    }
    if (etcd.name.empty()) reject(uri, "has no name for the job: write ", kEtcdForm);
    if (etcd.name.size() > 512) reject(uri, "has a name of more than 512 bytes");
    if (etcd.name.front() == '/' || etcd.name.back() == '/' || etcd.name.find("//") != std::string::npos)
        reject(uri, "has a name with an empty part between slashes");
    if (std::any_of(etcd.name.begin(), etcd.name.end(), [](char c) { return c <= ' ' || c > '~'; }))
        reject(uri, "has a name with something else than printable ASCII letters");
    while (!options.empty()) {
        const auto end = options.find('&');
        parse_etcd_option(uri, options.substr(0, end), etcd);
        options.remove_prefix(end == std::string_view::npos ? options.size() : end + 1);
    }
    if (etcd.cert.empty() != etcd.key.empty()) reject(uri, "has one of cert and key; they go together");
    if (!etcd.tls && !(etcd.cacert.empty() && etcd.cert.empty()))
        reject(uri, "names files for TLS, but does not ask for it: write etcds://");
    StoreUri parsed;
    parsed.etcd = std::move(etcd);
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
    if (uri.empty()) fail(DDP_ERROR_INVALID_ARGUMENT, "uri: is empty; write ", kForms);
    if (uri.starts_with(kTcp)) return parse_tcp(uri);
    if (uri.starts_with(kFile)) return parse_file(uri);
    if (uri.starts_with(kEtcd) || uri.starts_with(kEtcds)) return parse_etcd(uri);
    reject(uri, "is of no known kind; write ", kForms);
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
    int port() const override { return client_->port(); }
    std::int64_t raise_fence(std::int64_t at_least) override { return client_->raise_fence(at_least); }
    std::int64_t alive_until_ms() const override { return client_->alive_until_ms(); }

private:
    std::unique_ptr<TcpServer> server_;
    std::unique_ptr<TcpClient> client_;
};

// A server answers at once what does not wait for others; even a very busy one does not take longer than 10 s.
std::int64_t call_bound(const StoreConfig& config) {
    return std::min<std::int64_t>(config.timeout_ms, 10'000);
}

// Descriptors of a server, and of this process's client. Most of them are those of the two event loops.
constexpr std::size_t kToHost = 20;

std::shared_ptr<Store> client_of(std::unique_ptr<wire::Channel> channel, int port, const StoreConfig& config) {
    auto client = std::make_shared<TcpClient>(std::move(channel), config.uri, port, call_bound(config));
    return std::make_shared<EngineStore>(std::move(client), config, config.uri);
}

// config.secret: open_store has found it.
std::shared_ptr<Store> host_tcp(const StoreUri& uri, StoreConfig config, const Deadline& deadline) {
    const std::string& secret = config.secret.value();
    // Before ranks can connect with a server that then cannot go on.
    require_descriptors(kToHost + config.clients,
                        str("the store at ", tcp_uri(uri.host, uri.port),
                            config.clients == 0 ? "" : str(" for ", config.clients + 1, " ranks")));
    auto server = std::make_unique<TcpServer>(uri.host, uri.port, secret, deadline);
    std::string name = tcp_uri(uri.host, server->port());
    auto channel = connect_to_server(server->local_host(), server->port(), secret, deadline);
    auto client = std::make_unique<TcpClient>(std::move(channel), name, server->port(), call_bound(config));
    config.uri = tcp_uri(server->local_host(), server->port());
    auto engine = std::make_shared<HostingEngine>(std::move(server), std::move(client));
    return std::make_shared<EngineStore>(std::move(engine), std::move(config), std::move(name));
}

std::shared_ptr<Store> open_etcd(const EtcdAddress& address, StoreConfig config) {
    if (config.is_server)
        fail(DDP_ERROR_INVALID_ARGUMENT, "is_server: libddp runs no etcd; is_server is for tcp:// only");
    interrupt::refuse_inside_check();
    const auto deadline = Deadline::after_ms(config.timeout_ms);
    require_protection(config, address, deadline);
    auto engine = etcd_module(config.uri).open(address, config.uri, call_bound(config), deadline);
    std::string name = config.uri;
    return std::make_shared<EngineStore>(std::move(engine), std::move(config), std::move(name));
}

}  // namespace

std::shared_ptr<Store> open_store(StoreConfig config) {
    occupy_standard_descriptors();
    const StoreUri uri = parse_store_uri(config.uri);
    config.timeout_ms = config.timeout_ms <= 0 ? StoreConfig().timeout_ms : std::min(config.timeout_ms, kLongestWaitMs);
    if (uri.is_file) {
        if (config.is_server)
            fail(DDP_ERROR_INVALID_ARGUMENT, "is_server: a file store has no server; is_server is for tcp:// only");
        auto engine = std::make_shared<FileStore>(uri.path, config.timeout_ms);
        std::string name = config.uri;
        return std::make_shared<EngineStore>(std::move(engine), std::move(config), std::move(name));
    }
    if (uri.etcd) return open_etcd(*uri.etcd, std::move(config));
    if (!config.is_server) {
        if (uri.port == 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: '", config.uri, "' has port 0, which only a server can choose");
        interrupt::refuse_inside_check();
        config.uri = tcp_uri(uri.host, uri.port);
    }
    const auto deadline = Deadline::after_ms(config.timeout_ms);
    config.secret = job_secret(config, deadline);
    if (config.is_server) return host_tcp(uri, std::move(config), deadline);
    return client_of(connect_to_server(uri.host, uri.port, config.secret.value(), deadline), uri.port, config);
}

std::shared_ptr<Store> reopen_store(StoreConfig config, std::int64_t within_ms) {
    const StoreUri uri = parse_store_uri(config.uri);
    config.is_server = false;
    if (uri.is_file) return open_store(std::move(config));
    if (uri.etcd) {
        config.timeout_ms = within_ms;
        return open_store(std::move(config));
    }
    return client_of(connect_once(uri.host, uri.port, config.secret.value(), Deadline::after_ms(within_ms)), uri.port,
                     config);
}

std::string store_name(const std::string& uri) {
    const StoreUri parsed = parse_store_uri(uri);
    return parsed.is_file || parsed.etcd ? uri : tcp_uri(parsed.host, parsed.port);
}

void set_without_client(StoreConfig config, const std::string& key, std::string_view value, std::int64_t within_ms) {
    const StoreUri uri = parse_store_uri(config.uri);
    if (uri.is_file || uri.etcd) fail(DDP_ERROR_UNSUPPORTED, "only a tcp store takes a key without a client");
    const auto deadline = Deadline::after_ms(within_ms);
    const std::string secret = job_secret(config, deadline);
    ask_once(uri.host, uri.port, secret, Request{Op::kCompareSet, {key}, {"", std::string(value)}}, deadline);
}

}  // namespace libddp
