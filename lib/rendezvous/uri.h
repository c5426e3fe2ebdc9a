// The address of a store: "tcp://host:port", "tcp://[v6]:port" or "file:///absolute/path".
#pragma once

#include <string>

namespace libddp {

struct StoreUri {
    bool is_file = false;
    std::string host;  // tcp; without brackets
    int port = -1;     // tcp; 0 to 65535
    std::string path;  // file
};

// Throws Error (INVALID_ARGUMENT) that names `uri` and says what is wrong.
StoreUri parse_store_uri(const std::string& uri);

// "tcp://host:port", with brackets where the host needs them.
std::string tcp_uri(const std::string& host, int port);

}  // namespace libddp
