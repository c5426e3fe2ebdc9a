#include "rendezvous/uri.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "util/error.h"
#include "util/host.h"

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
    bool digits =
        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) reject(uri, "has the port '", text, "', which is not a number");
    int port = 0;
    for (char digit : text) {
        port = port * 10 + (digit - '0');
        if (port > 65535) reject(uri, "has the port ", text, ", which is above 65535");
    }
    return port;
}

// form: how the address is written, for messages.
HostAndPort parse_host_and_port(const std::string& uri, std::string_view text,
                                std::string_view form) {
    HostAndPort parsed;
    std::string_view port;
    if (text.starts_with('[')) {
        auto bracket = text.find(']');
        if (bracket == std::string_view::npos) reject(uri, "has '[' without ']'");
        parsed.host = text.substr(1, bracket - 1);
        std::string_view after = text.substr(bracket + 1);
        if (!after.empty() && after.front() != ':')
            reject(uri, "has '", after, "' where ':port' should be");
        port = after.empty() ? after : after.substr(1);
    } else {
        auto colon = text.find(':');
        parsed.host = text.substr(0, colon);
        port = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
        if (port.find(':') != std::string_view::npos)
            reject(uri, "has more than one ':'; an IPv6 address is written in brackets: ",
                   form.substr(0, form.find("host")), "[address]:port");
    }
    if (parsed.host.empty()) reject(uri, "has no host: write ", form);
    parsed.port = parse_port(uri, port, form);
    return parsed;
}

StoreUri parse_tcp(const std::string& uri) {
    StoreUri parsed;
    HostAndPort at =
        parse_host_and_port(uri, std::string_view(uri).substr(kTcp.size()), "tcp://host:port");
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
        if (value.empty() || value.front() != '/')
            reject(uri, "has '", option, "', which is no absolute path");
        (name == "cacert" ? etcd.cacert : name == "cert" ? etcd.cert : etcd.key) = value;
    } else if (name == "ttl") {
        const auto [end, code] =
            std::from_chars(value.data(), value.data() + value.size(), etcd.ttl_s);
        if (code != std::errc() || end != value.data() + value.size() || etcd.ttl_s < 1 ||
            etcd.ttl_s > 3600)
            reject(uri, "has '", option, "'; ttl is a number of seconds from 1 to 3600");
    } else {
        reject(uri, "has the option '", option,
               "'; there are ttl=SECONDS, tls, cacert=FILE, cert=FILE and key=FILE");
    }
}

StoreUri parse_etcd(const std::string& uri) {
    EtcdAddress etcd;
    etcd.tls = uri.starts_with(kEtcds);
    std::string_view rest = std::string_view(uri).substr((etcd.tls ? kEtcds : kEtcd).size());
    const auto question = rest.find('?');
    std::string_view options =
        question == std::string_view::npos ? std::string_view() : rest.substr(question + 1);
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
    if (etcd.name.front() == '/' || etcd.name.back() == '/' ||
        etcd.name.find("//") != std::string::npos)
        reject(uri, "has a name with an empty part between slashes");
    if (std::any_of(etcd.name.begin(), etcd.name.end(), [](char c) { return c <= ' ' || c > '~'; }))
        reject(uri, "has a name with something else than printable ASCII letters");
    while (!options.empty()) {
        const auto end = options.find('&');
        parse_etcd_option(uri, options.substr(0, end), etcd);
        options.remove_prefix(end == std::string_view::npos ? options.size() : end + 1);
    }
    if (etcd.cert.empty() != etcd.key.empty())
        reject(uri, "has one of cert and key; they go together");
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
        reject(uri,
               "names a relative path; an absolute one has three slashes: file:///absolute/path");
    if (parsed.path.back() == '/')
        reject(uri, "names a folder; it must name a file, which libddp creates");
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
    return str(kTcp, host_and_port(host, port));
}

}  // namespace libddp
