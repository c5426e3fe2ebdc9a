// Addresses of stores, and HOST:PORT as ddprun reads it.
#include "fuzz/target.h"
#include "rendezvous/uri.h"
#include "run/rendezvous.h"

namespace fuzz::store_uri {

using namespace libddp;

DDP_FUZZ_TARGET(store_uri, input) {
    const std::string text(input);
    accepts([&] {
        const StoreUri uri = parse_store_uri(text);
        if (uri.is_file) {
            check(uri.path.front() == '/' && text == "file://" + uri.path,
                  "a path is not that of the address");
            return;
        }
        if (uri.etcd) {
            for (const auto& [host, port] : uri.etcd->endpoints)
                check(0 < port && port <= 65535 && !host.empty(),
                      "an endpoint of etcd lacks its port or host");
            check(!uri.etcd->endpoints.empty() && !uri.etcd->name.empty(),
                  "an address of etcd lacks a part");
            return;
        }
        check(0 <= uri.port && uri.port <= 65535 && !uri.host.empty(),
              "an address lacks its port or host");
        const std::string written = tcp_uri(uri.host, uri.port);
        const StoreUri again = parse_store_uri(written);
        check(again.host == uri.host && again.port == uri.port,
              "an address changes when it is written and read");
    });
    if (const auto endpoint = ddprun::parse_endpoint(text)) {
        StoreUri uri;
        check(accepts([&] { uri = parse_store_uri(endpoint->uri()); }),
              "the store refuses what ddprun takes");
        check(uri.host == endpoint->host && uri.port == endpoint->port,
              "ddprun means another address than the store");
    }
}

}  // namespace fuzz::store_uri
