#include "rendezvous/etcd/client.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "util/error.h"
#include "util/host.h"

namespace libddp {
namespace {

std::string from_environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

using Json = nlohmann::json;

// After this long without an answer the client asks the next endpoint. The first attempt is short,
// because a server without a leader forgets requests and because a lease must outlive the attempt.
// Later attempts are longer, because all servers may be slow.
constexpr std::int64_t kAttemptMs = 1000;
constexpr std::int64_t kAttemptsInLease = 4;
constexpr std::int64_t kLongestAttemptMs = 8000;
constexpr std::int64_t kFirstPauseMs = 20;
constexpr std::int64_t kLongestPauseMs = 250;
constexpr std::int64_t kAuthenticateMs = 5000;
constexpr std::size_t kLongestLine = std::size_t{512} << 20;

// Codes of gRPC.
enum Grpc {
    kInvalidArgument = 3,
    kPermissionDenied = 7,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kOutOfRange = 11,
    kUnauthenticated = 16
};

// Another attempt may succeed.
struct Again {
    ErrorInfo why;
};
// etcd no longer knows the token.
struct WantsToken {};

[[noreturn]] void not_etcd(const std::string& what) {
    fail(DDP_ERROR_IO, "an answer that is not etcd's: ", what);
}

Json parse(std::string_view text) {
    Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) not_etcd("no JSON object");
    return json;
}

const Json& member(const Json& json, const char* name) {
    static const Json none;
    if (!json.is_object()) return none;
    auto found = json.find(name);
    return found == json.end() ? none : *found;
}

// etcd writes 64-bit numbers as text and leaves out those that are 0.
std::int64_t number(const Json& json, const char* name) {
    const Json& value = member(json, name);
    if (value.is_null()) return 0;
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (!value.is_string()) not_etcd(str(name, " is no number"));
    const auto& text = value.get_ref<const std::string&>();
    std::int64_t result = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (code != std::errc() || end != text.data() + text.size())
        not_etcd(str(name, " is no number"));
    return result;
}

bool flag(const Json& json, const char* name) {
    const Json& value = member(json, name);
    return value.is_boolean() && value.get<bool>();
}

std::string text(const Json& json, const char* name) {
    const Json& value = member(json, name);
    return value.is_string() ? value.get<std::string>() : "";
}

std::string bytes(const Json& json, const char* name) {
    const Json& value = member(json, name);
    if (value.is_null()) return "";
    if (!value.is_string()) not_etcd(str(name, " is no text"));
    return etcd_json::from_base64(value.get_ref<const std::string&>());
}

EtcdEntry entry(const Json& json) {
    return {bytes(json, "key"), bytes(json, "value"), number(json, "create_revision"),
            number(json, "mod_revision")};
}

void add_entries(const Json& json, std::vector<EtcdEntry>& entries) {
    const Json& list = member(json, "kvs");
    if (list.is_null()) return;
    if (!list.is_array()) not_etcd("kvs is no list");
    for (const auto& item : list) entries.push_back(entry(item));
}

Json encode(const EtcdRange& range) {
    Json json{{"key", etcd_json::to_base64(range.key)}};
    if (!range.end.empty()) json["range_end"] = etcd_json::to_base64(range.end);
    return json;
}

Json encode(const EtcdCondition& condition) {
    Json json = encode(condition.keys);
    using Field = EtcdCondition::Field;
    using Is = EtcdCondition::Is;
    json["target"] = condition.field == Field::kVersion   ? "VERSION"
                     : condition.field == Field::kCreated ? "CREATE"
                                                          : "MOD";
    json["result"] = condition.is == Is::kEqual      ? "EQUAL"
                     : condition.is == Is::kNotEqual ? "NOT_EQUAL"
                                                     : "GREATER";
    json[condition.field == Field::kVersion   ? "version"
         : condition.field == Field::kCreated ? "create_revision"
                                              : "mod_revision"] = std::to_string(condition.number);
    return json;
}

Json encode(const EtcdOperation& operation) {
    Json json = encode(operation.keys);
    switch (operation.kind) {
        case EtcdOperation::Kind::kDelete:
            return {{"request_delete_range", std::move(json)}};
        case EtcdOperation::Kind::kRead:
            return {{"request_range", std::move(json)}};
        case EtcdOperation::Kind::kPut:
            break;
    }
    json["value"] = etcd_json::to_base64(operation.value);
    if (operation.lease != 0) json["lease"] = std::to_string(operation.lease);
    return {{"request_put", std::move(json)}};
}

template <class Item>
Json encode_all(const std::vector<Item>& items) {
    Json list = Json::array();
    for (const auto& item : items) list.push_back(encode(item));
    return list;
}

Json lease_body(std::int64_t lease) {
    return {{"ID", std::to_string(lease)}};
}

}  // namespace

namespace etcd_json {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view in) {
    std::string out;
    out.reserve((in.size() + 2) / 3 * 4);
    for (std::size_t at = 0; at < in.size(); at += 3) {
        const std::size_t count = std::min<std::size_t>(3, in.size() - at);
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i)
            bits = bits << 8 | (i < count ? static_cast<unsigned char>(in[at + i]) : 0u);
        for (std::size_t i = 0; i < 4; ++i)
            out += i <= count ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
    return out;
}

std::string from_base64(std::string_view in) {
    static const auto values = [] {
        std::array<std::int8_t, 256> table;
        table.fill(-1);
        for (std::size_t i = 0; i < kAlphabet.size(); ++i)
            table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
        return table;
    }();
    if (in.size() % 4 != 0) not_etcd("a text that is not base64");
    std::size_t padding = in.ends_with("==") ? 2 : in.ends_with('=') ? 1 : 0;
    std::string out;
    out.reserve(in.size() / 4 * 3);
    for (std::size_t at = 0; at < in.size(); at += 4) {
        const std::size_t letters = at + 4 == in.size() ? 4 - padding : 4;
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const int value = i < letters ? values[static_cast<unsigned char>(in[at + i])] : 0;
            if (value < 0) not_etcd("a text that is not base64");
            bits = bits << 6 | static_cast<std::uint32_t>(value);
        }
        for (std::size_t i = 0; i + 1 < letters; ++i)
            out += static_cast<char>(bits >> (16 - 8 * i) & 255);
    }
    return out;
}

EtcdRead decode_read(std::string_view answer) {
    const Json json = parse(answer);
    EtcdRead read;
    read.revision = number(member(json, "header"), "revision");
    read.more = flag(json, "more");
    add_entries(json, read.entries);
    return read;
}

EtcdCommit decode_commit(std::string_view answer) {
    const Json json = parse(answer);
    EtcdCommit commit;
    commit.succeeded = flag(json, "succeeded");
    commit.revision = number(member(json, "header"), "revision");
    const Json& responses = member(json, "responses");
    if (responses.is_null()) return commit;
    if (!responses.is_array()) not_etcd("responses is no list");
    for (const auto& response : responses)
        add_entries(member(response, "response_range"), commit.entries);
    return commit;
}

EtcdNews decode_news(std::string_view line) {
    const Json json = parse(line);
    EtcdNews news;
    if (const Json& error = member(json, "error"); !error.is_null()) {
        news.canceled = true;
        news.reason = error.is_string() ? error.get<std::string>() : text(error, "message");
        return news;
    }
    const Json& result = member(json, "result");
    if (!result.is_object()) not_etcd("a watch without a result");
    news.canceled = flag(result, "canceled");
    news.compacted = number(result, "compact_revision");
    news.reason = text(result, "cancel_reason");
    const Json& events = member(result, "events");
    if (events.is_null()) return news;
    if (!events.is_array()) not_etcd("events is no list");
    for (const auto& event : events)
        news.events.push_back({text(event, "type") == "DELETE", entry(member(event, "kv"))});
    return news;
}

}  // namespace etcd_json

EtcdClient::EtcdClient(const EtcdAddress& address, std::string name,
                       std::shared_ptr<EtcdEndpoint> endpoint)
    : address_(address),
      name_(std::move(name)),
      user_(from_environment("DDP_ETCD_USER")),
      password_(from_environment("DDP_ETCD_PASSWORD")),
      endpoint_(std::move(endpoint)),
      http_({address.cacert, address.cert, address.key}) {}

std::string EtcdClient::url(std::size_t endpoint, const std::string& path) const {
    const auto& [host, port] = address_.endpoints[endpoint];
    return str(address_.tls ? "https://" : "http://", host_and_port(host, port), path);
}

// Unless another client has left it already.
void EtcdClient::leave(std::size_t endpoint) {
    endpoint_->compare_exchange_strong(endpoint, (endpoint + 1) % address_.endpoints.size());
}

// Throws Again, WantsToken or Error.
void EtcdClient::refused(const HttpClient::Answer& answer) const {
    if (answer.status == 200) return;
    const Json json = Json::parse(answer.body, nullptr, false);
    if (!json.is_object() || !json.contains("code")) {
        if (answer.status == 404)
            fail(DDP_ERROR_UNSUPPORTED,
                 "what listens there has no /v3/: it is not etcd 3.4 or newer with its JSON "
                 "gateway");
        throw Again{{DDP_ERROR_UNAVAILABLE, str("HTTP status ", answer.status)}};
    }
    const std::string reason =
        text(json, "error").empty() ? text(json, "message") : text(json, "error");
    const auto says = [&](const char* what) { return reason.find(what) != std::string::npos; };
    switch (number(json, "code")) {
        case kUnauthenticated:
            throw WantsToken{};
        case kPermissionDenied:
            fail(DDP_ERROR_PERMISSION_DENIED, reason);
        case kInvalidArgument:
            if (says("user name is empty")) {
                if (!user_.empty()) throw WantsToken{};
                fail(DDP_ERROR_PERMISSION_DENIED, reason,
                     ": set DDP_ETCD_USER and DDP_ETCD_PASSWORD");
            }
            if (says("authentication failed"))
                fail(DDP_ERROR_PERMISSION_DENIED, reason,
                     ": see DDP_ETCD_USER and DDP_ETCD_PASSWORD");
            if (says("too large"))
                fail(DDP_ERROR_LIMIT, reason,
                     ": etcd must allow requests of 1.5 MiB (--max-request-bytes)");
            fail(DDP_ERROR_INTERNAL, "etcd refuses a request: ", reason);
        case kResourceExhausted:
            if (says("space"))
                fail(DDP_ERROR_LIMIT, "the store is full: ", reason,
                     ": compact etcd's history (--auto-compaction-retention), or raise "
                     "--quota-backend-bytes");
            break;
        case kFailedPrecondition:
            if (says("authentication is not enabled"))
                fail(DDP_ERROR_PERMISSION_DENIED, reason, ": unset DDP_ETCD_USER, or enable it");
            break;
        case kOutOfRange:
            fail(DDP_ERROR_IO, reason);
        default:
            break;
    }
    throw Again{{DDP_ERROR_UNAVAILABLE, reason}};
}

// False: no user is set.
bool EtcdClient::authenticate(std::size_t endpoint, const Deadline& deadline) {
    token_.clear();
    if (user_.empty()) return false;
    const auto answer =
        http_.post(url(endpoint, "/v3/auth/authenticate"), "",
                   Json{{"name", user_}, {"password", password_}}.dump(),
                   Deadline::after_ms(std::min(deadline.remaining_ms(), kAuthenticateMs)));
    refused(answer);
    token_ = text(parse(answer.body), "token");
    if (token_.empty()) not_etcd("no token");
    return true;
}

std::string EtcdClient::call(const std::string& path, const std::string& body,
                             const Deadline& deadline) {
    const auto started = Deadline::Clock::now();
    ErrorInfo last;
    std::int64_t pause = kFirstPauseMs;
    std::int64_t attempt_ms = address_.endpoints.size() > 1
                                  ? std::min(kAttemptMs, address_.ttl_s * 1000 / kAttemptsInLease)
                                  : kLongestAttemptMs;
    for (std::size_t attempt = 1;; ++attempt) {
        const std::size_t endpoint = *endpoint_;
        try {
            if (!user_.empty() && token_.empty()) authenticate(endpoint, deadline);
            const auto bound = Deadline::after_ms(
                std::clamp<std::int64_t>(deadline.remaining_ms(), 1, attempt_ms));
            auto answer = http_.post(url(endpoint, path), token_, body, bound);
            refused(answer);
            return std::move(answer.body);
        } catch (const WantsToken&) {
            token_.clear();
            last = {DDP_ERROR_PERMISSION_DENIED,
                    "etcd wants a user and password: DDP_ETCD_USER, DDP_ETCD_PASSWORD"};
            if (user_.empty())
                fail(last.code, "the store at ", name_, " cannot be used: ", last.message);
        } catch (const Again& again) {
            last = again.why;
            leave(endpoint);
        } catch (const Error& error) {
            last = error.info();
            if (last.code == DDP_ERROR_ABORTED) throw;
            if (last.code == DDP_ERROR_INTERRUPTED)
                fail(last.code, "a wait for the store at ", name_, " was interrupted");
            if (last.code != DDP_ERROR_UNAVAILABLE && last.code != DDP_ERROR_TIMEOUT)
                fail(last.code, "the store at ", name_, " cannot be used: ", last.message);
            leave(endpoint);
        }
        if (deadline.expired()) break;
        if (attempt % address_.endpoints.size() != 0) continue;
        http_.pause(pause, deadline);
        if (deadline.expired()) break;
        pause = std::min(pause * 2, kLongestPauseMs);
        attempt_ms = std::min(attempt_ms * 2, kLongestAttemptMs);
    }
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - started)
            .count();
    fail(last.code, "the store at ", name_, " was not reached within ", waited,
         " ms: ", last.message,
         ". Check that etcd runs, that hosts and ports are right, and that no firewall is between");
}

std::int64_t EtcdClient::grant_lease(std::int64_t ttl_s, const Deadline& deadline) {
    const std::int64_t lease = number(
        parse(call("/v3/lease/grant", Json{{"TTL", std::to_string(ttl_s)}}.dump(), deadline)),
        "ID");
    if (lease == 0) not_etcd("a lease without a number");
    return lease;
}

bool EtcdClient::keep_alive(std::int64_t lease, const Deadline& deadline) {
    const Json json = parse(call("/v3/lease/keepalive", lease_body(lease).dump(), deadline));
    return number(member(json, "result"), "TTL") > 0;
}

void EtcdClient::revoke_lease(std::int64_t lease, const Deadline& deadline) {
    call("/v3/lease/revoke", lease_body(lease).dump(), deadline);
}

EtcdRead EtcdClient::read(const EtcdRange& range, std::int64_t revision, std::int64_t limit,
                          const Deadline& deadline) {
    Json json = encode(range);
    if (revision != 0) json["revision"] = std::to_string(revision);
    if (limit != 0) json["limit"] = std::to_string(limit);
    return etcd_json::decode_read(call("/v3/kv/range", json.dump(), deadline));
}

EtcdCommit EtcdClient::commit(const std::vector<EtcdCondition>& conditions,
                              const std::vector<EtcdOperation>& then,
                              const std::vector<EtcdOperation>& otherwise,
                              const Deadline& deadline) {
    const Json json{{"compare", encode_all(conditions)},
                    {"success", encode_all(then)},
                    {"failure", encode_all(otherwise)}};
    return etcd_json::decode_commit(call("/v3/kv/txn", json.dump(), deadline));
}

void EtcdClient::watch(const EtcdRange& range, std::int64_t from_revision,
                       const std::function<void(EtcdNews)>& seen) {
    Json request = encode(range);
    request["start_revision"] = std::to_string(from_revision);
    request["fragment"] = true;
    std::string pending;
    bool in_seen = false;  // an error in `seen` says nothing about the endpoint
    const auto more = [&](std::string_view piece) {
        pending.append(piece);
        std::size_t start = 0;
        // Only the new bytes can end a line.
        for (std::size_t end = pending.find('\n', pending.size() - piece.size());
             end != std::string::npos; end = pending.find('\n', start)) {
            if (end > start) {
                in_seen = true;
                seen(etcd_json::decode_news(std::string_view(pending).substr(start, end - start)));
                in_seen = false;
            }
            start = end + 1;
        }
        pending.erase(0, start);
        if (pending.size() > kLongestLine) not_etcd("a line without end");
    };
    const std::size_t endpoint = *endpoint_;
    try {
        if (!user_.empty() && token_.empty())
            authenticate(endpoint, Deadline::after_ms(kAuthenticateMs));
        const auto answer = http_.stream(url(endpoint, "/v3/watch"), token_,
                                         Json{{"create_request", request}}.dump(), more);
        refused(answer);
    } catch (const WantsToken&) {
        token_.clear();
    } catch (const Again& again) {
        leave(endpoint);
        throw Error(again.why);
    } catch (const Error&) {
        if (!in_seen) leave(endpoint);
        throw;
    }
}

}  // namespace libddp
