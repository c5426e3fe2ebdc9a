#include "rendezvous/uri.h"

#include <algorithm>
#include <string_view>

#include "util/error.h"

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

}  // namespace libddp
