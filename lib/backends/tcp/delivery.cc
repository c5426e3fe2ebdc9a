#include "backends/tcp/delivery.h"

#include <linux/tcp.h>  // and not netinet/tcp.h, whose tcp_info lacks what is needed here
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "record/recorder.h"

namespace libddp::tcp {
namespace {

constexpr std::int64_t kEveryNs = 100'000'000;

template <class Number>
void put(Number& at, Number value) {
    std::atomic_ref(at).store(value, std::memory_order_relaxed);
}

void note(int socket, record::PeerFact& fact, std::int64_t now_ns) {
    tcp_info info{};
    socklen_t size = sizeof info;
    // A kernel before 4.10 tells less.
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(tcp_info, tcpi_sndbuf_limited))
        return;
    const std::uint64_t waiting = std::uint64_t{info.tcpi_unacked} * info.tcpi_snd_mss +
                                  std::uint64_t{info.tcpi_notsent_bytes};
    const bool moves = info.tcpi_bytes_acked != fact.arrived || fact.stuck_since_ns == 0;
    put(fact.stuck_since_ns, waiting == 0 ? std::int64_t{0} : moves ? now_ns : fact.stuck_since_ns);
    put(fact.arrived, std::uint64_t{info.tcpi_bytes_acked});
    put(fact.waiting, waiting);
    put(fact.resent, std::uint32_t{info.tcpi_total_retrans});
    put(fact.busy_ns, static_cast<std::int64_t>(info.tcpi_busy_time * 1000));
    put(fact.unread_ns, static_cast<std::int64_t>(info.tcpi_rwnd_limited * 1000));
}

}  // namespace

std::optional<Delivery> Delivery::of(const std::vector<std::unique_ptr<Lane>>& lanes) {
    std::vector<std::int32_t> ranks;
    std::vector<int> sockets;
    for (const auto& lane : lanes) {
        ranks.push_back(lane->peer());
        sockets.push_back(lane->fd());
    }
    record::PeerFact* facts = record::Connecting::peers(std::move(ranks));
    if (!facts) return std::nullopt;
    return Delivery(std::move(sockets), facts);
}

void Delivery::look() {
    const std::int64_t now_ns = record::now_ns();
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + kEveryNs;
    for (std::size_t i = 0; i < sockets_.size(); ++i) note(sockets_[i], facts_[i], now_ns);
}

}  // namespace libddp::tcp
