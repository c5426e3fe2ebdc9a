#include "core/state_broadcast.h"

#include <cstring>

namespace libddp {
namespace {

// Tensors below this size are gathered before they are sent, up to this much at a time; larger ones are sent from where
// they lie.
constexpr std::size_t kCoalesceBytes = std::size_t{4} << 20;
// One broadcast of a large tensor sends at most this much, so that a timeout stays meaningful.
constexpr std::size_t kChunkBytes = std::size_t{250} << 20;

void broadcast_bytes(Group& group, std::byte* memory, std::size_t bytes, std::int32_t root) {
    for (std::size_t at = 0; at < bytes; at += kChunkBytes)
        group.run(
            {DDP_COLLECTIVE_BROADCAST, nullptr, memory + at, std::min(kChunkBytes, bytes - at), DDP_U8, DDP_SUM, root});
}

void broadcast_together(Group& group, const std::vector<const Param*>& entries, std::vector<std::byte>& staging,
                        std::int32_t root) {
    std::size_t at = 0;
    if (group.rank() == root)
        for (const Param* p : entries) {
            std::memcpy(staging.data() + at, p->data, p->bytes);
            at += p->bytes;
        }
    broadcast_bytes(group, staging.data(), staging.size(), root);
    at = 0;
    if (group.rank() != root)
        for (const Param* p : entries) {
            std::memcpy(p->data, staging.data() + at, p->bytes);
            at += p->bytes;
        }
}

}  // namespace

void broadcast_state(Group& group, const std::vector<const Param*>& entries, std::int32_t root) {
    if (group.world() == 1) return;
    std::vector<const Param*> small;
    std::vector<std::byte> staging;
    auto flush = [&] {
        if (!small.empty()) broadcast_together(group, small, staging, root);
        small.clear();
        staging.clear();
    };
    for (const Param* p : entries) {
        if (!p->data || p->bytes == 0 || p->ignored) continue;
        if (p->bytes >= kCoalesceBytes) {
            broadcast_bytes(group, static_cast<std::byte*>(p->data), p->bytes, root);
            continue;
        }
        if (staging.size() + p->bytes > kCoalesceBytes) flush();
        small.push_back(p);
        staging.resize(staging.size() + p->bytes);
    }
    flush();
}

}  // namespace libddp
