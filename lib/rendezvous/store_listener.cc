#include "rendezvous/store_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "rendezvous/protocol.h"
#include "rendezvous/uri.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

// An honest client proves itself at once.
constexpr auto kHandshakeBound = std::chrono::seconds(5);

[[noreturn]] void cannot_listen(const std::string& name, int error) {
    std::string why = std::generic_category().message(error);
    switch (error) {
        case EADDRINUSE:
            fail(
                DDP_ERROR_ALREADY_EXISTS, "the store server cannot listen on ", name,
                ": the port is taken by another process; choose another port, or 0 for a free one");
        case EACCES:
        case EPERM:
            fail(DDP_ERROR_PERMISSION_DENIED, "the store server may not listen on ", name, ": ",
                 why);
        case EADDRNOTAVAIL:
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: the store server cannot listen on ", name,
                 ": the host is not an address of this machine");
        case EMFILE:
        case ENFILE:
            fail(DDP_ERROR_LIMIT, "the store server cannot listen on ", name, ": ", why,
                 kRaiseOpenFiles);
        default:
            fail(DDP_ERROR_IO, "the store server cannot listen on ", name, ": ", why);
    }
}

// How often a name that has no address of this host yet is looked up again.
constexpr std::chrono::milliseconds kLookAgain{200};
// How long a name may stand for another host. Name servers hold an address for a while after its
// host is gone: those of Kubernetes for up to 30 s.
constexpr std::int64_t kForeignMs = 60'000;

bool is_of_this_host(const SocketAddress& address) {
    const Descriptor probe(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return !probe || ::bind(probe.get(), address.get(), address.size) == 0 ||
           errno != EADDRNOTAVAIL;
}

// The first address that this host has.
std::optional<SocketAddress> own_of(const std::vector<SocketAddress>& addresses) {
    const auto own = std::find_if(addresses.begin(), addresses.end(), is_of_this_host);
    return own == addresses.end() ? std::nullopt : std::optional(*own);
}

// The address of a name or number. Where a cluster starts a host, or starts one again, the host may
// know its address before the name servers do. So this waits for the name until the deadline; while
// they give the address of another host, for kForeignMs.
SocketAddress address_to_listen_on(const std::string& host, int port, const Deadline& deadline) {
    const auto foreign = Deadline::after_ms(std::min(kForeignMs, deadline.remaining_ms()));
    bool told = false;
    while (true) {
        std::vector<SocketAddress> found;
        ErrorInfo error;
        try {
            found = resolve(host, port, deadline);
        } catch (const Error& failure) {
            error = failure.info();
            if (error.code != DDP_ERROR_UNAVAILABLE) throw;
        }
        if (const auto own = own_of(found)) return *own;
        // A number stays what it is. Listening there says what is wrong.
        if (!found.empty() && (is_numeric(host) || foreign.expired())) return found.front();
        const std::string why = found.empty()
                                    ? error.message
                                    : str("the host name '", host, "' is ", found.front().host(),
                                          ", which is not an address of this machine");
        if (!std::exchange(told, true))
            log(LogLevel::kWarn, "the store server waits for the address of its host: ", why);
        if (!interrupt::sleep(kLookAgain, deadline))
            fail(DDP_ERROR_INTERRUPTED,
                 "a wait for the address of the store server's host was interrupted: ", why);
        if (!deadline.expired()) continue;
        if (found.empty()) throw Error(error);
        return found.front();
    }
}

}  // namespace

StoreListener::StoreListener(uv_loop_t* loop, const std::string& host, int port,
                             const std::string& secret, const Deadline& deadline,
                             wire::Gate::Admit admit) {
    const std::string name = tcp_uri(host, port);
    Descriptor socket = listening_socket(address_to_listen_on(host, port, deadline));
    if (!socket) cannot_listen(name, errno);
    address_ = local_address(socket.get());
    auto lookup = [key = wire::derive_key(secret, kStoreKey)](std::string_view identity) {
        return version_of(identity) ? std::optional(key) : std::nullopt;
    };
    gate_ = std::make_unique<wire::Gate>(std::move(socket), "store", std::move(lookup),
                                         wire::Protection::kEncrypted, std::move(admit),
                                         kHandshakeBound);
    int status = uv_poll_init(loop, &poll_, gate_->fd());
    poll_.data = this;
    if (status == 0)
        status = uv_poll_start(&poll_, UV_READABLE, [](uv_poll_t* poll, int, int) {
            static_cast<StoreListener*>(poll->data)->advance();
        });
    if (status != 0) cannot_listen(name, -status);
}

void StoreListener::advance() {
    if (gate_ == nullptr) return;
    try {
        gate_->advance();
    } catch (const std::exception& error) {
        log(LogLevel::kWarn, "store: connections cannot be served now: ", error.what());
    }
}

void StoreListener::close() {
    uv_close(reinterpret_cast<uv_handle_t*>(&poll_), nullptr);
    gate_.reset();
}

}  // namespace libddp
