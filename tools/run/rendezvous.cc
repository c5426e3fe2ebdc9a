#include "rendezvous.h"

#include <arpa/inet.h>
#include <ddp/interrupt.h>
#include <ddp/store_more.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace ddprun {
namespace {

constexpr int kLargestPort = 65535;
// The launcher's values are small; what takes longer has failed.
constexpr Milliseconds kCallBound{5'000};
// The least time for one attempt to reach the store.
constexpr Milliseconds kShortestAttempt{100};

// Turns an outcome of libddp into an exception.
class Outcome {
public:
    ~Outcome() { ddp_error_free(error_); }
    Outcome() = default;
    Outcome(const Outcome&) = delete;
    Outcome& operator=(const Outcome&) = delete;

    ddp_error** out() { return &error_; }
    void check(ddp_status status) const {
        if (status != DDP_OK) throw StoreError(status, ddp_error_message(error_));
    }

private:
    ddp_error* error_ = nullptr;
};

// Lets a function end the waits of this thread. An empty one ends none.
class Interrupts {
public:
    explicit Interrupts(std::function<bool()> wanted) : wanted_(std::move(wanted)) {
        if (wanted_)
            install([](void* of) -> std::int32_t {
                return static_cast<Interrupts*>(of)->wanted_() ? 1 : 0;
            });
    }
    ~Interrupts() {
        if (wanted_) install(nullptr);
    }
    Interrupts(const Interrupts&) = delete;
    Interrupts& operator=(const Interrupts&) = delete;

private:
    // Cannot fail: the flag is one that libddp knows.
    void install(ddp_interrupt_fn check) {
        ddp_set_interrupt_check(check, this, nullptr, DDP_INTERRUPT_THIS_THREAD, nullptr);
    }

    const std::function<bool()> wanted_;
};

}  // namespace

std::string hidden_loopback(const std::string& host) {
    constexpr std::uint32_t kLoopbackNet = 127;
    in6_addr number{};
    const bool is_number = inet_pton(AF_INET, host.c_str(), &number) == 1 ||
                           inet_pton(AF_INET6, host.c_str(), &number) == 1;
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (is_number || host == "localhost" || getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0)
        return "";
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
    std::string first;
    for (const addrinfo* at = found; at; at = at->ai_next) {
        const in_addr address = reinterpret_cast<const sockaddr_in*>(at->ai_addr)->sin_addr;
        if (ntohl(address.s_addr) >> 24 != kLoopbackNet) return "";
        char text[INET_ADDRSTRLEN] = "";
        if (first.empty()) first = inet_ntop(AF_INET, &address, text, sizeof text);
    }
    return first;
}

std::string Endpoint::uri() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return "tcp://" + (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::optional<Endpoint> parse_endpoint(const std::string& text, int least_port) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos) return std::nullopt;
    Endpoint result;
    result.host = text.substr(0, colon);
    const bool bracketed =
        result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']';
    if (bracketed) result.host = result.host.substr(1, result.host.size() - 2);
    if (result.host.empty() || result.host.find_first_of("[]/ ") != std::string::npos)
        return std::nullopt;
    // Without brackets nobody can tell where an IPv6 address ends and its port begins.
    if (!bracketed && result.host.find(':') != std::string::npos) return std::nullopt;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data() + colon + 1, end, result.port);
    if (failure != std::errc{} || stop != end || result.port < least_port ||
        result.port > kLargestPort)
        return std::nullopt;
    return result;
}

Store Store::open(const std::string& uri, const std::string& secret, bool serve,
                  Milliseconds bound) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = uri.c_str();
    options.is_server = serve ? 1 : 0;
    options.timeout_ms = bound.count();
    options.secret = secret.c_str();
    ddp_store* store = nullptr;
    Outcome outcome;
    outcome.check(ddp_store_create(&options, &store, outcome.out()));
    return Store(store);
}

Store Store::serve(const Endpoint& address, const std::string& secret, Milliseconds bound,
                   std::function<bool()> interrupted) {
    const Interrupts interrupts(std::move(interrupted));
    return open(address.uri(), secret, true, bound);
}

Store Store::connect(const std::string& uri, const std::string& secret, Milliseconds bound,
                     const std::function<void(const std::string& why)>& on_absence) {
    const auto give_up = Clock::now() + bound;
    for (bool told = false;; told = true) {
        const auto left = std::chrono::duration_cast<Milliseconds>(give_up - Clock::now());
        const auto attempt = std::clamp(left, kShortestAttempt, kCallBound);
        try {
            Store store = open(uri, secret, false, attempt);
            // A store keeps the bound of its attempt for later calls, which may take longer than
            // what is left now.
            return attempt == kCallBound ? std::move(store) : open(uri, secret, false, kCallBound);
        } catch (const StoreError& error) {
            if (!error.is_absence() || Clock::now() >= give_up) throw;
            if (!told) on_absence(error.what());
        }
    }
}

int Store::port() const {
    return ddp_store_port(store_.get());
}

void Store::set(const std::string& key, const std::string& value) {
    Outcome outcome;
    outcome.check(
        ddp_store_set(store_.get(), key.c_str(), value.data(), value.size(), outcome.out()));
}

std::optional<std::string> Store::get(const std::string& key) {
    const char* const name = key.c_str();
    std::int32_t exists = 0;
    Outcome outcome;
    outcome.check(ddp_store_check(store_.get(), &name, 1, &exists, outcome.out()));
    if (exists == 0) return std::nullopt;
    return await(key);
}

std::string Store::await(const std::string& key) {
    void* value = nullptr;
    std::size_t size = 0;
    Outcome outcome;
    outcome.check(
        ddp_store_get(store_.get(), key.c_str(), kCallBound.count(), &value, &size, outcome.out()));
    const std::unique_ptr<void, decltype(&ddp_free)> owner(value, ddp_free);
    return std::string(static_cast<const char*>(value), size);
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
    std::int64_t sum = 0;
    Outcome outcome;
    outcome.check(ddp_store_add(store_.get(), key.c_str(), amount, &sum, outcome.out()));
    return sum;
}

std::vector<std::string> Store::list(const std::string& prefix) {
    void* keys = nullptr;
    std::size_t size = 0;
    Outcome outcome;
    outcome.check(ddp_store_list_keys(store_.get(), prefix.c_str(), &keys, &size, outcome.out()));
    const std::unique_ptr<void, decltype(&ddp_free)> owner(keys, ddp_free);
    std::vector<std::string> list;
    const char* const text = static_cast<const char*>(keys);
    for (std::size_t at = 0; at < size; at += list.back().size() + 1) list.emplace_back(text + at);
    return list;
}

}  // namespace ddprun
