// The address of a store: "tcp://host:port", "tcp://[v6]:port", "file:///absolute/path" or
// "etcd://host:port[,host:port...]/name[?option=value&...]".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace libddp {

struct HostAndPort {
    std::string host;  // without brackets
    int port = -1;     // 0 to 65535
};

// docs/ddprun.md, "A store on etcd".
struct EtcdAddress {
    std::vector<HostAndPort> endpoints;  // at least one
    std::string name;                    // of the job: its keys are below /ddp/<name>//
    std::int64_t ttl_s = 5;              // a process that is silent for this long counts as dead
    bool tls = false;
    std::string cacert, cert, key;  // files, or empty
};

struct StoreUri {
    bool is_file = false;
    std::string host;  // tcp; without brackets
    int port = -1;     // tcp; 0 to 65535
    std::string path;  // file
    std::optional<EtcdAddress> etcd;
};

// Throws Error (INVALID_ARGUMENT) that names `uri` and says what is wrong.
StoreUri parse_store_uri(const std::string& uri);

// "tcp://host:port", with brackets where the host needs them.
std::string tcp_uri(const std::string& host, int port);

}  // namespace libddp
