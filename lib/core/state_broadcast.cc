#include "core/state_broadcast.h"

#include <algorithm>
#include <list>

#include "comm/pieces.h"
#include "device/scratch.h"

namespace libddp {
namespace {

// Tensors below this size are gathered before they are sent, up to this much at a time; larger ones are sent from where
// they lie.
constexpr std::size_t kCoalesceBytes = std::size_t{4} << 20;
// One broadcast of a large tensor sends at most this much, so that a timeout stays meaningful.
constexpr std::size_t kChunkBytes = std::size_t{250} << 20;

// What is sent of one device.
class Sender {
public:
    Sender(Group& group, StreamPtr stream, std::int32_t root)
        : group_(group), stream_(std::move(stream)), root_(root) {}

    const StreamPtr& stream() const { return stream_; }

    void send(const Param& p) {
        auto* data = static_cast<std::byte*>(p.data);
        if (p.bytes >= kCoalesceBytes) return broadcast(data, p.bytes);
        if (total_bytes(small_) + p.bytes > kCoalesceBytes) flush();
        small_.push_back({data, p.bytes});
    }

    void flush() {
        const std::size_t bytes = total_bytes(small_);
        if (bytes == 0) return;
        std::byte* together = memory_.require(bytes, stream_);
        const bool mine = group_.rank() == root_;
        if (mine) gather_pieces(together, small_, stream_);
        broadcast(together, bytes);
        if (!mine) scatter_pieces(together, small_, stream_);
        small_.clear();
    }

private:
    void broadcast(std::byte* memory, std::size_t bytes) {
        const ScopedTag tag(tag_on(stream_));
        for (std::size_t at = 0; at < bytes; at += kChunkBytes)
            group_.run({DDP_COLLECTIVE_BROADCAST, nullptr, memory + at, std::min(kChunkBytes, bytes - at), DDP_U8,
                        DDP_SUM, root_, device_of_stream(stream_)});
    }

    Group& group_;
    const StreamPtr stream_;
    const std::int32_t root_;
    std::vector<Piece> small_;
    ScratchMemory memory_;
};

}  // namespace

// Devices in the order in which they come first, as their numbers may differ between ranks.
void broadcast_state(Group& group, const DeviceLanes& lanes, const std::vector<const Param*>& entries,
                     std::int32_t root) {
    if (group.world() == 1) return;
    const ScopedPurpose scope(Purpose::kState);
    std::list<Sender> senders;
    for (const Param* p : entries) {
        if (!p->data || p->bytes == 0 || p->ignored) continue;
        const StreamPtr stream = lanes.stream(p->device);
        auto sender =
            std::find_if(senders.begin(), senders.end(), [&](const Sender& s) { return s.stream() == stream; });
        if (sender == senders.end()) sender = senders.emplace(senders.end(), group, stream, root);
        sender->send(*p);
    }
    for (Sender& sender : senders) sender.flush();
}

}  // namespace libddp
