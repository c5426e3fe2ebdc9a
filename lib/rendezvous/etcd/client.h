// etcd's v3 API through its JSON gateway: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/.
// Requests go to one endpoint until that fails, then to the next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/etcd/http_client.h"
#include "rendezvous/uri.h"
#include "util/deadline.h"

namespace libddp {

struct EtcdEntry {
    std::string key;
    std::string value;
    std::int64_t create_revision = 0;
    std::int64_t mod_revision = 0;
};

struct EtcdEvent {
    bool deleted = false;
    EtcdEntry entry;
};

// end: empty, or the keys from `key` to before `end`.
struct EtcdRange {
    std::string key;
    std::string end;
};

struct EtcdRead {
    std::int64_t revision = 0;  // of the whole etcd when it answered
    std::vector<EtcdEntry> entries;
    bool more = false;
};

// A condition that all keys of the range must meet. A key that does not exist has 0 everywhere, and
// so has an empty range.
struct EtcdCondition {
    enum class Field { kVersion, kCreated, kModified };
    enum class Is { kEqual, kNotEqual, kGreater };
    EtcdRange keys;
    Field field = Field::kVersion;
    Is is = Is::kEqual;
    std::int64_t number = 0;
};

struct EtcdOperation {
    enum class Kind { kPut, kDelete, kRead };
    Kind kind = Kind::kRead;
    EtcdRange keys;
    std::string value;
    std::int64_t lease = 0;

    static EtcdOperation put(std::string key, std::string value = "", std::int64_t lease = 0) {
        return {Kind::kPut, {std::move(key), ""}, std::move(value), lease};
    }
    static EtcdOperation remove(EtcdRange keys) { return {Kind::kDelete, std::move(keys), "", 0}; }
    static EtcdOperation read(EtcdRange keys) { return {Kind::kRead, std::move(keys), "", 0}; }
};

struct EtcdCommit {
    bool succeeded = false;
    std::int64_t revision = 0;
    std::vector<EtcdEntry> entries;  // of all reads
};

// News of a watch: events, or that etcd ended it.
struct EtcdNews {
    std::vector<EtcdEvent> events;
    bool canceled = false;
    std::int64_t compacted = 0;  // etcd has nothing from before this revision any more
    std::string reason;
};

namespace etcd_json {
// Pure functions. Functions that read throw Error (IO) on anything that is no answer of etcd's.
std::string to_base64(std::string_view bytes);
std::string from_base64(std::string_view text);
EtcdRead decode_read(std::string_view answer);
EtcdCommit decode_commit(std::string_view answer);
EtcdNews decode_news(std::string_view line);
}  // namespace etcd_json

// The endpoint that is asked next. Clients share it: one that finds an endpoint silent spares the
// others the wait.
using EtcdEndpoint = std::atomic<std::size_t>;

// Several requests at once need several clients. One thread uses a client; any may call end and
// cut.
class EtcdClient {
public:
    // User and password: DDP_ETCD_USER and DDP_ETCD_PASSWORD. name: for messages. Throws as
    // HttpClient.
    EtcdClient(const EtcdAddress& address, std::string name,
               std::shared_ptr<EtcdEndpoint> endpoint = std::make_shared<EtcdEndpoint>(0));

    // These try until the deadline, once at least. Throw Error: UNAVAILABLE or TIMEOUT (nobody
    // answers), PERMISSION_DENIED (user, password, rights or certificates), LIMIT (etcd is full, or
    // the request too large for it), UNSUPPORTED (no JSON gateway), IO (an answer that cannot be
    // etcd's), INTERRUPTED, ABORTED.
    std::int64_t grant_lease(std::int64_t ttl_s, const Deadline& deadline);
    bool keep_alive(std::int64_t lease, const Deadline& deadline);  // false: it has expired
    // revision 0: the newest. limit: of entries.
    EtcdRead read(const EtcdRange& range, std::int64_t revision, std::int64_t limit,
                  const Deadline& deadline);
    // A request that got lost may be carried out twice: the conditions must see to that.
    EtcdCommit commit(const std::vector<EtcdCondition>& conditions,
                      const std::vector<EtcdOperation>& then,
                      const std::vector<EtcdOperation>& otherwise, const Deadline& deadline);
    void revoke_lease(std::int64_t lease, const Deadline& deadline);

    // Gives to `seen` what happens in the range from that revision on, until the stream ends. One
    // attempt; the next goes to the next endpoint. Throws as above, and what `seen` throws.
    void watch(const EtcdRange& range, std::int64_t from_revision,
               const std::function<void(EtcdNews)>& seen);

    void end() { http_.end(); }
    void cut() { http_.cut(); }
    void pause(std::int64_t ms, const Deadline& deadline) { http_.pause(ms, deadline); }
    const std::string& name() const { return name_; }

private:
    std::string call(const std::string& path, const std::string& body, const Deadline& deadline);
    std::string url(std::size_t endpoint, const std::string& path) const;
    bool authenticate(std::size_t endpoint, const Deadline& deadline);
    void leave(std::size_t endpoint);
    void refused(const HttpClient::Answer& answer) const;

    const EtcdAddress address_;
    const std::string name_;
    std::string user_, password_;
    std::string token_;
    const std::shared_ptr<EtcdEndpoint> endpoint_;
    HttpClient http_;
};

}  // namespace libddp
