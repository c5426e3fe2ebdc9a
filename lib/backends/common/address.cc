#include "backends/common/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backends/common/keys.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"
#include "wire/sockets.h"

namespace libddp::backend {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// How long a link that is down at the moment is given, and how often it is looked for.
constexpr std::int64_t kLinkMs = 10'000;
constexpr std::int64_t kLookMs = 100;
// How long the resolver is given for this host's own name.
constexpr std::int64_t kOwnNameMs = 5000;
// Names are looked up with some port.
constexpr int kAnyPort = 9;

struct Interface {
    std::string name;
    std::string address;
    int family;
};

std::string numeric(const sockaddr* address) {
    char text[NI_MAXHOST] = "";
    const socklen_t size =
        address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
    return text;
}

// A link-local address means something on one link only, and needs a scope that a numeric address
// does not carry.
bool usable(const ifaddrs& entry) {
    constexpr unsigned kNeeded = IFF_UP | IFF_RUNNING;
    if (!entry.ifa_addr || (entry.ifa_flags & kNeeded) != kNeeded ||
        (entry.ifa_flags & IFF_LOOPBACK))
        return false;
    if (entry.ifa_addr->sa_family == AF_INET) return true;
    if (entry.ifa_addr->sa_family != AF_INET6) return false;
    sockaddr_in6 v6;
    std::memcpy(&v6, entry.ifa_addr, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

// Addresses others might reach, IPv4 first, otherwise in the kernel's order.
std::vector<Interface> interfaces() {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return {};
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
    std::vector<Interface> found;
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next)
        if (usable(*entry))
            found.push_back(
                {entry->ifa_name, numeric(entry->ifa_addr), entry->ifa_addr->sa_family});
    std::stable_partition(found.begin(), found.end(),
                          [](const Interface& i) { return i.family == AF_INET; });
    return found;
}

// Equal for two processes only if 127.0.0.1 of one is that of the other. Host names say nothing
// (containers share them, or have one that does not resolve); a boot id and a namespace's number
// do. The addresses are there for sandboxes that invent both.
std::string machine_identity() {
    std::string boot;
    FileIn("/proc/sys/kernel/random/boot_id") >> boot;
    char net[64] = "";
    const ssize_t size = readlink("/proc/self/ns/net", net, sizeof net - 1);
    std::string identity = boot + " " + (size > 0 ? net : "") + " ";
    if (boot.empty() || size <= 0) {
        char name[HOST_NAME_MAX + 1] = "";
        gethostname(name, sizeof name - 1);
        identity += name;
    }
    for (const Interface& interface : interfaces())
        identity += " " + interface.name + "=" + interface.address;
    return identity;
}

// None if the name has no address, or the resolver does not tell it in time.
std::vector<SocketAddress> addresses_of(const std::string& name, const Deadline& deadline) {
    try {
        return resolve(name, kAnyPort, deadline);
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_TIMEOUT) log(LogLevel::kWarn, error.info().message);
        if (error.info().code != DDP_ERROR_TIMEOUT && error.info().code != DDP_ERROR_UNAVAILABLE)
            throw;
        return {};
    }
}

// The address of this host's name, if it is one of this host's usable addresses. A resolver that
// does not answer must not take the time in which the ranks meet.
std::optional<std::string> address_of_own_name(const std::vector<Interface>& own,
                                               const Deadline& deadline) {
    char name[HOST_NAME_MAX + 1] = "";
    if (gethostname(name, sizeof name - 1) != 0) return std::nullopt;
    const auto bound = Deadline::after_ms(std::min(kOwnNameMs, deadline.remaining_ms() / 4));
    for (const SocketAddress& entry : addresses_of(name, bound)) {
        const std::string address = numeric(entry.get());
        for (const Interface& interface : own)
            if (interface.address == address) return address;
    }
    return std::nullopt;
}

// An address that ranks on other hosts can reach. A link that is down at the moment is given a
// while, but less than the other ranks wait for this one: what is missing here must be known before
// they give up.
std::string own_address(const ddp_backend_host& host, const Deadline& deadline) {
    const auto up = Deadline::after_ms(std::min(kLinkMs, deadline.remaining_ms() / 2));
    for (;;) {
        const std::vector<Interface> own = interfaces();
        if (!own.empty()) return address_of_own_name(own, deadline).value_or(own.front().address);
        if (up.expired())
            fail(DDP_ERROR_IO,
                 "this host has no network interface that is up, but for the loopback, and the "
                 "ranks are on several hosts");
        Keys(host).check_group(kLookMs);
    }
}

bool is_loopback(const std::string& address) {
    return address == "::1" || address.starts_with("127.");
}

// Others could not reach it there, and might reach a process of their own.
void refuse_loopback(const std::string& address, const char* whose) {
    if (!is_loopback(address)) return;
    fail(DDP_ERROR_INVALID_ARGUMENT, "the ranks are on several hosts, and ", whose, " ", address,
         " is reached from one host only; set the option iface=NAME or host=ADDRESS, or the "
         "variable DDP_IFACE, to a network that all hosts share");
}

// The source address of the route to `peer`. Connecting a datagram socket asks the routing table
// and sends nothing.
std::optional<std::string> address_toward(const std::string& peer) {
    if (!is_numeric(peer)) return std::nullopt;
    const SocketAddress to = resolve(peer, kAnyPort, Deadline::after_ms(0)).front();
    const Descriptor probe(socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe) return std::nullopt;
    sockaddr_storage source{};
    socklen_t size = sizeof source;
    // The casts are the sockets interface's own idiom; nothing is read through the wrong type.
    auto* address = reinterpret_cast<sockaddr*>(&source);
    const bool ok = connect(probe.get(), to.get(), to.size) == 0 &&
                    getsockname(probe.get(), address, &size) == 0;
    if (!ok) return std::nullopt;
    return numeric(address);
}

// Loopbacks and interfaces that are down count here: the user named one.
std::string address_of_interface(const std::string& name) {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) fail(DDP_ERROR_IO, "getifaddrs: ", std::strerror(errno));
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
    std::string names;
    for (int family : {AF_INET, AF_INET6})
        for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
            if (!entry->ifa_addr || entry->ifa_addr->sa_family != family) continue;
            if (entry->ifa_name == name) return numeric(entry->ifa_addr);
            names += str(names.empty() ? "" : ", ", entry->ifa_name);
        }
    fail(DDP_ERROR_INVALID_ARGUMENT, "iface '", name, "' has no address here; there are ", names);
}

bool can_bind(const SocketAddress& address) {
    const Descriptor probe(socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe) return false;
    sockaddr_storage any_port = address.storage;
    // The port is at the same place in both families.
    reinterpret_cast<sockaddr_in*>(&any_port)->sin_port = 0;
    return bind(probe.get(), reinterpret_cast<sockaddr*>(&any_port), address.size) == 0;
}

std::string address_of_host(const std::string& name, const Deadline& deadline) {
    // Less than the other ranks wait for this one: what is wrong here must be known before they
    // give up.
    const auto found = addresses_of(name, Deadline::after_ms(deadline.remaining_ms() / 2));
    if (found.empty()) fail(DDP_ERROR_INVALID_ARGUMENT, "host '", name, "' does not resolve");
    for (const SocketAddress& entry : found)
        if (can_bind(entry)) return numeric(entry.get());
    fail(DDP_ERROR_INVALID_ARGUMENT, "host '", name, "' is not an address of this machine");
}

// "" if the choice is left to libddp.
std::string requested_address(const Network& network, const Deadline& deadline) {
    if (!network.iface.empty()) return address_of_interface(network.iface);
    if (!network.host.empty()) return address_of_host(network.host, deadline);
    return "";
}

std::string machine_key(int rank) {
    return str("machine/", rank);
}

// Rank 0 hears from everyone and answers with the address to aim at.
std::string decide_as_root(const ddp_backend_host& host, const std::string& requested,
                           const Deadline& deadline) {
    const Keys keys(host, "address/");
    const std::string mine = machine_identity();
    bool one_machine = true;
    for (int rank = 1; rank < host.world_size; ++rank) {
        try {
            if (keys.get(machine_key(rank), deadline) != mine) one_machine = false;
        } catch (const Error& error) {
            if (error.info().code != DDP_ERROR_TIMEOUT) throw;
            throw Error(ErrorInfo{
                DDP_ERROR_TIMEOUT,
                str("rank ", rank, " did not come to connect within ", host.timeout_ms, " ms"),
                rank});
        }
    }
    std::string aim = requested;
    if (aim.empty()) aim = one_machine ? kLoopback : own_address(host, deadline);
    if (!one_machine) refuse_loopback(aim, "rank 0's address");
    keys.set("aim", (one_machine ? "local " : "remote ") + aim);
    return aim;
}

std::string decide_as_other(const ddp_backend_host& host, const std::string& requested,
                            const Deadline& deadline) {
    const Keys keys(host, "address/");
    keys.set(machine_key(host.rank), machine_identity());
    const std::string answer = keys.get("aim", deadline);
    const bool one_machine = answer.starts_with("local ");
    std::string address = requested;
    if (address.empty() && one_machine) address = kLoopback;
    if (address.empty()) address = address_toward(answer.substr(answer.find(' ') + 1)).value_or("");
    if (address.empty() || (requested.empty() && !one_machine && is_loopback(address)))
        address = own_address(host, deadline);
    if (!one_machine) refuse_loopback(address, "this rank's address");
    return address;
}

// The first name of a list such as PyTorch allows; "" if the variable is not set.
std::string interface_from(const char* variable) {
    const char* value = std::getenv(variable);
    if (!value) return "";
    const std::string list = value;
    return list.substr(0, list.find(','));
}

}  // namespace

Network Network::from(OptionReader& options) {
    Network network;
    for (const auto& [key, place] : {std::pair{"iface", &network.iface}, {"host", &network.host}}) {
        const auto value = options.take(key);
        if (value && value->empty())
            fail(DDP_ERROR_INVALID_ARGUMENT, options.name(key), " has no value");
        *place = value.value_or("");
    }
    if (!network.iface.empty() && !network.host.empty())
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend_options: give 'iface' or 'host', not both");
    if (network.host.empty() && network.iface.empty()) network.iface = interface_from("DDP_IFACE");
    if (network.host.empty() && network.iface.empty())
        network.iface = interface_from("GLOO_SOCKET_IFNAME");
    return network;
}

std::string choose_address(const ddp_backend_host& host, const Network& network,
                           const Deadline& deadline) {
    const std::string requested = requested_address(network, deadline);
    return host.rank == 0 ? decide_as_root(host, requested, deadline)
                          : decide_as_other(host, requested, deadline);
}

}  // namespace libddp::backend
