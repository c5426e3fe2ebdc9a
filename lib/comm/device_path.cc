#include "comm/device_path.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "backends/common/slices.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "kernels/parts.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {
namespace {

// Bytes of a chunk in pinned memory. Small enough that copies overlap with the backend already in a
// bucket of the usual size, large enough that the start of a copy costs little.
constexpr std::size_t kChunkBytes = std::size_t{2} << 20;

// A piece of a chunk: where it stands in device memory and in pinned memory, in bytes.
struct Copy {
    std::size_t memory, pinned, bytes;
};

}  // namespace

// Collectives of a backend that takes host memory only, on device memory: chunk after chunk is
// copied to pinned memory, reduced there, and copied back, so that copies in both directions and
// the backend work at the same time.
class DevicePath::HostRelay {
public:
    // down: the stream on which data comes to the host. look: throws when the group is broken.
    HostRelay(StreamPtr down, Transport& host, std::int32_t rank, std::int32_t world,
              std::function<void()> look);
    ~HostRelay();
    HostRelay(const HostRelay&) = delete;
    HostRelay& operator=(const HostRelay&) = delete;

    // Returns when the backend is done and the rest is enqueued on up(). Ranks cut alike.
    void run(const ddp_collective& collective);
    // The stream on which results go back to the device.
    const DeviceStream& up() const { return *up_; }

private:
    struct Pinned {
        std::shared_ptr<std::byte> memory;
        std::size_t bytes = 0;
        EventPtr fetched;  // the chunk has come to the host
        EventPtr free;     // its result is back on the device
    };
    // How a collective is cut: which part of each piece of the input and the output a chunk is.
    struct Cut;
    struct ExchangeCut;

    template <class AnyCut>
    void run_cut(const AnyCut& cut);
    template <class AnyCut>
    void make_room(const AnyCut& cut);
    template <class AnyCut>
    void fetch(const AnyCut& cut, std::size_t chunk);
    template <class AnyCut>
    void reduce(const AnyCut& cut, std::size_t chunk);
    template <class AnyCut>
    void give_back(const AnyCut& cut, std::size_t chunk);
    void wait_for(const ddp_collective& collective, const Deadline& deadline,
                  const DeviceEvent& event) const;
    Pinned& pinned(std::size_t chunk) { return pinned_[chunk % pinned_.size()]; }

    const StreamPtr down_, up_;
    Transport& host_;
    const std::size_t rank_, world_;
    const std::function<void()> look_;
    std::array<Pinned, 3> pinned_;
};

// A collective's input is `in` pieces and its output `out` pieces, one after another; each chunk
// takes the same `step` elements of every piece, as far as it has them. In pinned memory the input
// stands first. The output takes its place if they are alike, or if the operation is in place.
struct DevicePath::HostRelay::Cut {
    Cut(const ddp_collective& op, std::size_t rank, std::size_t world_)
        : collective(op),
          item(dtype_size(op.dtype)),
          deadline(Deadline::after_ms(op.timeout_ms)),
          world(world_) {
        longest = op.count;
        if (op.counts)
            longest = static_cast<std::size_t>(*std::max_element(op.counts, op.counts + world));
        switch (op.kind) {
            case DDP_COLLECTIVE_ALLGATHER:
                out = world;
                own = rank;  // where this rank's input stands in the output
                break;
            case DDP_COLLECTIVE_REDUCE_SCATTER:
                in = world;
                result = rank;
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
        step = std::min(step, std::max<std::size_t>(longest, 1));
    }

    std::size_t chunks() const { return std::max<std::size_t>((longest + step - 1) / step, 1); }
    std::size_t size(std::size_t piece, std::size_t chunk) const {
        const std::size_t count = part_count(collective, static_cast<int>(piece));
        return std::min(step, count - std::min(count, chunk * step));
    }
    std::size_t bytes() const {
        return step * item * (in > 1 ? in + out : std::max({in, out, std::size_t{1}}));
    }
    // Between device memory and pinned memory, in bytes.
    std::vector<Copy> to_fetch(std::size_t chunk) const {
        std::vector<Copy> copies;
        for (std::size_t piece = 0; piece < in; ++piece)
            copies.push_back({offset(piece, chunk), place(own + piece, chunk) * item,
                              size(own + piece, chunk) * item});
        return copies;
    }
    // The part of an allgather from this rank itself is there already, unless it came from
    // elsewhere.
    std::vector<Copy> to_give_back(std::size_t chunk) const {
        std::vector<Copy> copies;
        for (std::size_t piece = 0; piece < out; ++piece)
            copies.push_back({offset(piece, chunk), (output(chunk) + place(piece, chunk)) * item,
                              size(result + piece, chunk) * item});
        return copies;
    }
    // The collective of a chunk in pinned memory. counts: memory for those of the parts.
    ddp_collective of_chunk(std::size_t chunk, std::byte* memory,
                            std::vector<std::uint64_t>& counts) const {
        ddp_collective part = collective;
        part.count = size(0, chunk);
        if (part.counts) {
            for (std::size_t piece = 0; piece < world; ++piece)
                counts.push_back(size(piece, chunk));
            part.counts = counts.data();
            part.count = place(world, chunk);
        }
        part.send = memory + place(own, chunk) * item;
        part.recv = memory + output(chunk) * item;
        return part;
    }

    // Where a piece of the chunk stands in pinned memory among those before it, in elements.
    std::size_t place(std::size_t piece, std::size_t chunk) const {
        std::size_t before = 0;
        for (std::size_t p = 0; p < piece; ++p) before += size(p, chunk);
        return before;
    }
    // Where the output stands there.
    std::size_t output(std::size_t chunk) const {
        return in <= 1 ? 0 : place(collective.counts ? result : in, chunk);
    }
    // Where a chunk's part of a piece stands in device memory.
    std::size_t offset(std::size_t piece, std::size_t chunk) const {
        return (part_begin(collective, static_cast<int>(piece)) + chunk * step) * item;
    }

    const ddp_collective& collective;
    const std::size_t item;
    const Deadline deadline;
    const std::size_t world;
    std::size_t in = 1, out = 1, own = 0, result = 0;
    std::size_t longest = 0, step = 0;
};

// An all_to_all: a chunk is the same share of each part. In pinned memory the input stands first.
struct DevicePath::HostRelay::ExchangeCut {
    ExchangeCut(const ddp_collective& op, std::size_t rank_, std::size_t world_)
        : collective(op),
          deadline(Deadline::after_ms(op.timeout_ms)),
          item(dtype_size(op.dtype)),
          rank(static_cast<int>(rank_)),
          world(static_cast<int>(world_)),
          rounds(op, world, kChunkBytes / 2 / item),
          input(Exchanged(op, world).input(rank)),
          output(Exchanged(op, world).output(rank, output_counts)) {}

    std::size_t chunks() const { return rounds.size(); }
    std::size_t bytes() const { return ends_at(to_give_back(0)); }  // the first is the longest
    std::vector<Copy> to_fetch(std::size_t chunk) const {
        std::vector<Copy> copies;
        std::size_t place = 0;
        for (int to = 0; to < world; ++to)
            add(copies, place, part_begin(input, to) + rounds.before(rank, to, chunk),
                rounds.count(rank, to, chunk));
        return copies;
    }
    std::vector<Copy> to_give_back(std::size_t chunk) const {
        std::vector<Copy> copies;
        std::size_t place = ends_at(to_fetch(chunk));
        for (int from = 0; from < world; ++from)
            add(copies, place, part_begin(output, from) + rounds.before(from, rank, chunk),
                rounds.count(from, rank, chunk));
        return copies;
    }
    ddp_collective of_chunk(std::size_t chunk, std::byte* memory,
                            std::vector<std::uint64_t>& counts) const {
        ddp_collective part = collective;
        part.count = 0;
        for (int from = 0; from < world; ++from)
            for (int to = 0; to < world; ++to) {
                counts.push_back(rounds.count(from, to, chunk));
                part.count += rounds.count(from, to, chunk);
            }
        part.counts = counts.data();
        part.send = memory;
        part.recv = memory + ends_at(to_fetch(chunk));
        return part;
    }

    const ddp_collective& collective;
    const Deadline deadline;

private:
    void add(std::vector<Copy>& copies, std::size_t& place, std::size_t at,
             std::size_t count) const {
        copies.push_back({at * item, place, count * item});
        place += count * item;
    }
    static std::size_t ends_at(const std::vector<Copy>& copies) {
        return copies.back().pinned + copies.back().bytes;
    }

    const std::size_t item;
    const int rank, world;
    const backend::ExchangeRounds rounds;
    std::vector<std::uint64_t> output_counts;
    const ddp_collective input, output;
};

DevicePath::HostRelay::HostRelay(StreamPtr down, Transport& host, std::int32_t rank,
                                 std::int32_t world, std::function<void()> look)
    : down_(std::move(down)),
      up_(on_device::make_stream(down_->device())),
      host_(host),
      rank_(static_cast<std::size_t>(rank)),
      world_(static_cast<std::size_t>(world)),
      look_(std::move(look)) {}

DevicePath::HostRelay::~HostRelay() {
    for (Pinned& buffer : pinned_) {
        release_after(buffer.memory, buffer.fetched);
        release_after(std::move(buffer.memory), buffer.free);
    }
}

void DevicePath::HostRelay::run(const ddp_collective& collective) {
    if (collective.kind == DDP_COLLECTIVE_ALL_TO_ALL)
        run_cut(ExchangeCut(collective, rank_, world_));
    else
        run_cut(Cut(collective, rank_, world_));
}

template <class AnyCut>
void DevicePath::HostRelay::run_cut(const AnyCut& cut) {
    up_->wait(*down_->record());
    make_room(cut);
    const std::size_t chunks = cut.chunks();
    for (std::size_t chunk = 0; chunk < std::min(chunks, pinned_.size() - 1); ++chunk)
        fetch(cut, chunk);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        if (const std::size_t ahead = chunk + pinned_.size() - 1; ahead < chunks) fetch(cut, ahead);
        reduce(cut, chunk);
        give_back(cut, chunk);
    }
}

template <class AnyCut>
void DevicePath::HostRelay::make_room(const AnyCut& cut) {
    for (Pinned& buffer : pinned_) {
        if (buffer.bytes >= cut.bytes()) continue;
        if (buffer.free) wait_for(cut.collective, cut.deadline, *buffer.free);
        buffer.memory = allocate_pinned(down_->device().kind, cut.bytes());
        buffer.bytes = cut.bytes();
    }
}

template <class AnyCut>
void DevicePath::HostRelay::fetch(const AnyCut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    if (buffer.free) down_->wait(*buffer.free);
    for (const Copy& copy : cut.to_fetch(chunk))
        down_->copy_to_host(buffer.memory.get() + copy.pinned,
                            static_cast<const std::byte*>(cut.collective.send) + copy.memory,
                            copy.bytes);
    buffer.fetched = down_->record();
}

// Ranks are compared before the first chunk.
template <class AnyCut>
void DevicePath::HostRelay::reduce(const AnyCut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    wait_for(cut.collective, cut.deadline, *buffer.fetched);
    std::vector<std::uint64_t> counts;
    ddp_collective part = cut.of_chunk(chunk, buffer.memory.get(), counts);
    part.device = {DDP_DEVICE_CPU, 0};
    part.stream = nullptr;
    if (chunk > 0) part.signature_size = 0;
    host_.run(part);
}

template <class AnyCut>
void DevicePath::HostRelay::give_back(const AnyCut& cut, std::size_t chunk) {
    Pinned& buffer = pinned(chunk);
    for (const Copy& copy : cut.to_give_back(chunk))
        up_->copy_to_device(static_cast<std::byte*>(cut.collective.recv) + copy.memory,
                            buffer.memory.get() + copy.pinned, copy.bytes);
    buffer.free = up_->record();
}

void DevicePath::HostRelay::wait_for(const ddp_collective& collective, const Deadline& deadline,
                                     const DeviceEvent& event) const {
    if (!libddp::wait_for(event, deadline, look_))
        fail(DDP_ERROR_TIMEOUT, device_name(down_->device()),
             ": the work before a collective did not end within ", collective.timeout_ms, " ms");
}

DevicePath::DevicePath(Config config)
    : config_(std::move(config)), stream_(on_device::make_stream(config_.device)) {
    if (!config_.on_device && config_.world > 1)
        relay_ = std::make_unique<HostRelay>(stream_, *config_.on_host, config_.rank, config_.world,
                                             config_.look);
}

DevicePath::~DevicePath() = default;

void DevicePath::run(ddp_collective collective, const Division& division,
                     const Submitted& submitted) {
    stream_->wait(submitted.begin);
    const bool in_graph = stream_->capture(stream_->handle()) != 0;
    try {
        if (in_graph) keep_in_graph(submitted.memory);
        if (division.before != 1) {
            void* const all =
                collective.counts ? const_cast<void*>(collective.send) : collective.recv;
            on_device::transfer(*stream_, {{all, collective.send, collective.count}},
                                collective.dtype, collective.dtype, division.before);
            collective.send = all;
        }
        if (config_.world == 1)
            run_alone(collective);
        else if (config_.on_device && collective.kind == DDP_COLLECTIVE_ALL_TO_ALL &&
                 !config_.on_device->has(DDP_BACKEND_ALL_TO_ALL))
            enqueue_broadcasts(collective, submitted, in_graph);
        else if (config_.on_device)
            enqueue(collective, submitted, in_graph);
        else
            relay_->run(collective);
        if (division.after != 1) {
            const DeviceStream& end = relay_ ? relay_->up() : *stream_;
            on_device::transfer(
                end, {{collective.recv, collective.recv, part_count(collective, config_.rank)}},
                collective.dtype, collective.dtype, division.after);
        }
        if (in_graph && config_.world > 1) spoil_if_broken(collective);
    } catch (...) {
        // Copies may be under way: whoever frees the memory comes after them.
        try {
            give_back_order(submitted);
        } catch (const Error&) {
            // A device that fails does nothing more.
        }
        throw;
    }
    give_back_order(submitted);
}

// The graph may be launched when the group has been freed.
void DevicePath::keep_in_graph(std::shared_ptr<const void> memory) const {
    using Kept = std::pair<std::shared_ptr<const void>, std::shared_ptr<Transport>>;
    stream_->keep_in_graph(std::make_shared<const Kept>(std::move(memory), config_.on_device));
}

// Behind an operation in a graph. One that was aborted leaves anything.
void DevicePath::spoil_if_broken(const ddp_collective& c) const {
    std::vector<std::uint64_t> counts;
    const std::size_t count =
        c.kind == DDP_COLLECTIVE_ALL_TO_ALL
            ? all_parts(Exchanged(c, config_.world).output(config_.rank, counts), config_.world)
        : c.kind == DDP_COLLECTIVE_ALLGATHER ? all_parts(c, config_.world)
                                             : part_count(c, config_.rank);
    const auto spoiled = config_.spoiled();
    on_device::spoil(*stream_, c.recv, count * dtype_size(c.dtype), spoiled.get());
    keep_in_graph(spoiled);
}

void DevicePath::enqueue(const ddp_collective& collective, const Submitted& submitted,
                         bool in_graph) {
    StreamWatch::Entry entry;
    entry.timeout_ms = collective.timeout_ms;
    entry.memory = submitted.memory;
    entry.what = submitted.what;
    config_.watch->enqueue(std::move(entry), [&](StreamWatch::Entry& enqueued) {
        if (!in_graph) enqueued.begin = stream_->record();
        ddp_collective op = collective;
        op.stream = stream_->handle();
        config_.on_device->run(op);
        if (!in_graph) enqueued.end = stream_->record();
    });
}

// An all_to_all where the backend knows none, as Transport::run does it for host memory.
void DevicePath::enqueue_broadcasts(const ddp_collective& c, const Submitted& submitted,
                                    bool in_graph) {
    const Exchanged exchanged(c, config_.world);
    std::size_t most = 1;
    for (int root = 0; root < config_.world; ++root)
        most = std::max(most, all_parts(exchanged.input(root), config_.world));
    std::byte* const passing = passing_.require(most * dtype_size(c.dtype), stream_);
    if (in_graph) keep_in_graph(passing_.on_device());
    auto* next = static_cast<std::byte*>(c.recv);
    for (int root = 0; root < config_.world; ++root) {
        const ddp_collective input = exchanged.input(root);
        ddp_collective op = c;
        op.kind = DDP_COLLECTIVE_BROADCAST;
        op.counts = nullptr;
        op.root = root;
        op.recv = passing;
        op.send = root == config_.rank ? c.send : op.recv;
        op.count = all_parts(input, config_.world);
        if (op.count > 0) enqueue(op, submitted, in_graph);
        const std::size_t bytes = part_bytes(input, config_.rank);
        if (bytes > 0)
            on_device::transfer(*stream_, {{next, part_of(input, op.recv, config_.rank), bytes}},
                                DDP_U8, DDP_U8, 1);
        next += bytes;
    }
}

// A backend's scale is 1 here, and so is that of a mean.
void DevicePath::run_alone(const ddp_collective& c) {
    if (c.send != c.recv && c.count > 0)
        on_device::transfer(*stream_, {{c.recv, c.send, c.count}}, c.dtype, c.dtype, 1);
}

void DevicePath::give_back_order(const Submitted& submitted) const {
    submitted.stream.wait(*stream_->record());
    if (relay_) submitted.stream.wait(*relay_->up().record());
}

}  // namespace libddp
