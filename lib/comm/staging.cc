#include "comm/staging.h"

#include <algorithm>
#include <utility>

#include "kernels/dtype.h"
#include "util/deadline.h"
#include "util/error.h"
#include "kernels/on_device.h"

namespace libddp {
namespace {

// Bytes of a chunk in pinned memory. Small enough that copies overlap with the backend already in a bucket of the usual
// size, large enough that the start of a copy costs little.
constexpr std::size_t kChunkBytes = std::size_t{2} << 20;

}  // namespace

// A collective's input is `in` pieces and its output `out` pieces of `count` elements, one after another; each chunk takes
// the same `step` elements of every piece. In a slot the input stands first, and the output in its place if they are alike.
struct Staging::Cut {
    Cut(const ddp_collective& op, std::size_t rank, std::size_t world)
        : collective(op), item(dtype_size(op.dtype)), deadline(Deadline::after_ms(op.timeout_ms)) {
        switch (op.kind) {
            case DDP_COLLECTIVE_ALLGATHER:
                out = world;
                own = rank;  // where this rank's input stands in the output
                break;
            case DDP_COLLECTIVE_REDUCE_SCATTER:
                in = world;
                break;
            case DDP_COLLECTIVE_BROADCAST:
                (static_cast<std::size_t>(op.root) == rank ? out : in) = 0;
                break;
            case DDP_COLLECTIVE_BARRIER:
                in = out = 0;
                break;
            default:
                break;
        }
        step = std::max<std::size_t>(kChunkBytes / item / std::max({in, out, std::size_t{1}}), 1);
        step = std::min(step, std::max<std::size_t>(op.count, 1));
    }

    std::size_t chunks() const { return std::max<std::size_t>((collective.count + step - 1) / step, 1); }
    std::size_t begin(std::size_t chunk) const { return chunk * step; }
    std::size_t size(std::size_t chunk) const { return std::min(step, collective.count - begin(chunk)); }
    std::size_t bytes() const { return step * item * (in > 1 ? in + out : std::max({in, out, std::size_t{1}})); }
    // Where the output stands in a slot, in elements.
    std::size_t output(std::size_t chunk) const { return in > 1 ? in * size(chunk) : 0; }
    // Where a chunk's part of a piece stands in device memory.
    std::size_t place(std::size_t piece, std::size_t chunk) const {
        return (piece * collective.count + begin(chunk)) * item;
    }

    const ddp_collective& collective;
    const std::size_t item;
    const Deadline deadline;
    std::size_t in = 1, out = 1, own = 0;
    std::size_t step = 0;
};

Staging::Staging(StreamPtr down, Transport& host, std::int32_t rank, std::int32_t world, std::function<void()> look)
    : down_(std::move(down)),
      up_(on_device::make_stream(down_->device())),
      host_(host),
      rank_(static_cast<std::size_t>(rank)),
      world_(static_cast<std::size_t>(world)),
      look_(std::move(look)) {}

Staging::~Staging() {
    for (Slot& s : slots_) {
        release_after(s.memory, s.fetched);
        release_after(std::move(s.memory), s.free);
    }
}

void Staging::run(const ddp_collective& collective) {
    const Cut cut(collective, rank_, world_);
    up_->wait(*down_->record());
    make_room(cut);
    const std::size_t chunks = cut.chunks();
    for (std::size_t chunk = 0; chunk < std::min(chunks, slots_.size() - 1); ++chunk) fetch(cut, chunk);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (const std::size_t ahead = chunk + slots_.size() - 1; ahead < chunks) fetch(cut, ahead);
        reduce(cut, chunk);
        give_back(cut, chunk);
    }
}

void Staging::make_room(const Cut& cut) {
    for (Slot& s : slots_) {
        if (s.bytes >= cut.bytes()) continue;
        if (s.free) wait_for(cut, *s.free);
        s.memory = allocate_pinned(down_->device().kind, cut.bytes());
        s.bytes = cut.bytes();
    }
}

void Staging::fetch(const Cut& cut, std::size_t chunk) {
    Slot& s = slot(chunk);
    if (s.free) down_->wait(*s.free);
    for (std::size_t piece = 0; piece < cut.in; ++piece)
        down_->copy_to_host(s.memory.get() + (cut.own + piece) * cut.size(chunk) * cut.item,
                            static_cast<const std::byte*>(cut.collective.send) + cut.place(piece, chunk),
                            cut.size(chunk) * cut.item);
    s.fetched = down_->record();
}

// Ranks are compared before the first chunk.
void Staging::reduce(const Cut& cut, std::size_t chunk) {
    Slot& s = slot(chunk);
    wait_for(cut, *s.fetched);
    ddp_collective part = cut.collective;
    part.device = {DDP_DEVICE_CPU, 0};
    part.stream = nullptr;
    part.count = cut.size(chunk);
    part.send = s.memory.get() + cut.own * part.count * cut.item;
    part.recv = s.memory.get() + cut.output(chunk) * cut.item;
    if (chunk > 0) part.signature_size = 0;
    host_.run(part);
}

// What an allgather brings of this rank itself is there already, unless it came from elsewhere.
void Staging::give_back(const Cut& cut, std::size_t chunk) {
    Slot& s = slot(chunk);
    for (std::size_t piece = 0; piece < cut.out; ++piece)
        up_->copy_to_device(static_cast<std::byte*>(cut.collective.recv) + cut.place(piece, chunk),
                            s.memory.get() + (cut.output(chunk) + piece * cut.size(chunk)) * cut.item,
                            cut.size(chunk) * cut.item);
    s.free = up_->record();
}

void Staging::wait_for(const Cut& cut, const DeviceEvent& event) const {
    if (!libddp::wait_for(event, cut.deadline, look_))
        fail(DDP_ERROR_TIMEOUT, device_name(down_->device()), ": the work before a collective did not end within ",
             cut.collective.timeout_ms, " ms");
}

}  // namespace libddp
