#include "wire/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "util/error.h"
#include "util/interrupt.h"
#include "util/mutex.h"
#include "util/ports.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

constexpr int kBacklog = 4096;

struct Lookup {
    Mutex mutex;
    Condition finished;
    bool done DDP_GUARDED_BY(mutex) = false;
    int code DDP_GUARDED_BY(mutex) = 0;
    std::vector<SocketAddress> addresses DDP_GUARDED_BY(mutex);
};

int look_up(const std::string& host, int port, int flags, std::vector<SocketAddress>& out) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) return code;
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
        SocketAddress address;
        std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
        address.size = at->ai_addrlen;
        out.push_back(address);
    }
    freeaddrinfo(list);
    return out.empty() ? EAI_NONAME : 0;
}

// getaddrinfo has no time limit of its own, so it runs in a thread that is left behind if it takes
// too long; it owns all it touches and ends when the system's resolver gives up.
void start_lookup(const std::shared_ptr<Lookup>& lookup, const std::string& host, int port) {
    quiet_thread([lookup, host, port] {
        std::vector<SocketAddress> addresses;
        int code = look_up(host, port, 0, addresses);
        const Lock lock(lookup->mutex);
        lookup->done = true;
        lookup->code = code;
        lookup->addresses = std::move(addresses);
        lookup->finished.notify_all();
    }).detach();
}

void set_option(int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
}

// A port that is named may still have connections of a process that has ended.
Descriptor listen_at(const SocketAddress& address) {
    Descriptor fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return fd;
    if (address.port() != 0) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd.get(), address.get(), address.size) == 0 && listen(fd.get(), kBacklog) == 0)
        return fd;
    const int error = errno;
    fd.reset();
    errno = error;
    return fd;
}

}  // namespace

std::string SocketAddress::host() const {
    char text[INET6_ADDRSTRLEN] = "";
    if (storage.ss_family == AF_INET)
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text,
                  sizeof text);
    if (storage.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, text,
                  sizeof text);
    return text;
}

int SocketAddress::port() const {
    if (storage.ss_family == AF_INET)
        return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
    if (storage.ss_family == AF_INET6)
        return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    return -1;
}

SocketAddress SocketAddress::with_port(int port) const {
    SocketAddress result = *this;
    // The port is at the same place in both families.
    reinterpret_cast<sockaddr_in*>(&result.storage)->sin_port =
        htons(static_cast<std::uint16_t>(port));
    return result;
}

bool SocketAddress::is_loopback() const {
    constexpr std::uint32_t kLoopbackNet = 127;
    if (storage.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr;
        return ntohl(v4.s_addr) >> 24 == kLoopbackNet;
    }
    if (storage.ss_family != AF_INET6) return false;
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) ||
           (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == kLoopbackNet);
}

bool is_numeric(const std::string& host) {
    std::vector<SocketAddress> addresses;
    return look_up(host, 0, AI_NUMERICHOST, addresses) == 0;
}

std::vector<SocketAddress> resolve(const std::string& host, int port, const Deadline& deadline) {
    std::vector<SocketAddress> numeric;
    // the usual case needs no thread
    if (look_up(host, port, AI_NUMERICHOST, numeric) == 0) return numeric;

    auto lookup = std::make_shared<Lookup>();
    start_lookup(lookup, host, port);
    Lock lock(lookup->mutex);
    const auto waited = interrupt::wait(lock, lookup->finished, deadline,
                                        [&]() DDP_REQUIRES(lookup->mutex) { return lookup->done; });
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for the system's resolver, which looks for the host '",
             host, "', was interrupted");
    if (waited == interrupt::Waited::kTimeout)
        fail(DDP_ERROR_TIMEOUT, "the system's resolver did not find the host '", host, "' in time");
    if (lookup->code != 0)
        fail(DDP_ERROR_UNAVAILABLE, "the host name '", host,
             "' cannot be resolved: ", gai_strerror(lookup->code));
    return lookup->addresses;
}

Descriptor listening_socket(const SocketAddress& address) {
    const auto allowed = allowed_ports();
    if (address.port() != 0 || !allowed) return listen_at(address);
    // Users name the first ports for stores.
    for (int port = allowed->last; port >= allowed->first; --port) {
        Descriptor fd = listen_at(address.with_port(port));
        if (fd || errno != EADDRINUSE) return fd;
    }
    fail(DDP_ERROR_LIMIT, "cannot listen on ", address.host(), ": every port of ", allowed->text(),
         " is taken; give DDP_PORTS more ports, or end the processes that listen there");
}

void tune_socket(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilentConnectionMs);
}

SocketAddress local_address(int fd) {
    SocketAddress address;
    address.size = sizeof address.storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
        return SocketAddress();
    return address;
}

SocketAddress peer_address(int fd) {
    SocketAddress address;
    address.size = sizeof address.storage;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
        return SocketAddress();
    return address;
}

}  // namespace libddp
