// Posts of another rank of this host in shared memory about a collective.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "backends/shm/handoff.h"
#include "backends/shm/operations.h"
#include "backends/shm/team.h"
#include "fuzz/fake_host.h"
#include "fuzz/target.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace fuzz::shm_posts {
namespace {

using namespace libddp;
using namespace libddp::shm;

constexpr std::size_t kStaging = 4096;
constexpr std::size_t kBlock = 65536;
constexpr std::size_t kMostElements = 3000;
constexpr int kWorld = 2;

// Rank 0 of two. Rank 1 is its memory alone, which the target writes.
class Host {
public:
    Host() : layout_(kWorld, kStaging, page_size()) {
        fake_.set = [this](const std::string&, const std::string& value) { address_ = value; };
        fake_.get = [this](const std::string&) {
            segment_.emplace(receive_descriptor(address_, Deadline::after_ms(1000)));
            return std::string("1");
        };
        const ddp_backend_host host = fake_.services(0, kWorld);
        team_ = std::make_unique<Team>(host, TeamOptions{0, kWorld, "", kStaging}, failure_);
        control_ = segment_->map(0, layout_.control_bytes());
        block_ = static_cast<std::byte*>(team_->arena().allocate(kBlock));
        segment_->reserve(layout_.blocks(1), kBlock);
    }

    Team& team() { return *team_; }
    std::byte* block() const { return block_; }
    Location own_block() const { return team_->arena().locate(block_, kBlock); }
    Location block_of_peer() const { return {layout_.blocks(1), kBlock, 0}; }
    Shared& shared() { return *at<Shared>(0); }
    RankState& peer() { return *at<RankState>(layout_.rank_state(1)); }
    Post& post(std::uint32_t parity) { return *at<Post>(layout_.post(1, parity)); }
    std::byte* staging(int slot) { return at<std::byte>(layout_.staging(1, slot)); }

    // As if rank 1 had come to the next collective, and to all its barriers.
    void come() {
        const std::uint32_t next = at<RankState>(layout_.rank_state(0))->posted.load() + 1;
        set(shared().arrivals, kWorld * next);
        set(shared().completed, next);
        set(shared().barrier, barriers_ = kWorld * (barriers_seen_ + kBarriers));
    }
    void count_barriers() { barriers_seen_ += value(shared().barrier) - barriers_; }

private:
    static constexpr std::uint32_t kBarriers = 1 << 20;

    template <class T>
    T* at(std::uint64_t offset) {
        return reinterpret_cast<T*>(control_.data() + offset);
    }
    // A counter begins with its value.
    static void set(Counter& counter, std::uint32_t value) {
        std::memcpy(static_cast<void*>(&counter), &value, 4);
    }
    static std::uint32_t value(const Counter& counter) {
        std::uint32_t number;
        std::memcpy(&number, static_cast<const void*>(&counter), 4);
        return number;
    }

    const Layout layout_;
    FakeHost fake_;
    std::string address_;
    backend::Failure failure_;
    std::optional<Segment> segment_;
    std::unique_ptr<Team> team_;
    Mapping control_;
    std::byte* block_ = nullptr;
    std::uint32_t barriers_ = 0, barriers_seen_ = 0;
};

// Chooses from few places: each that is mapped takes memory for good.
Location location_of(Reader& bytes, const Host& host) {
    const Location block = host.block_of_peer();
    const std::uint64_t blocks[] = {
        block.block,      0, host.own_block().block, block.block + 4096, block.block + kBlock,
        ~std::uint64_t{0}};
    Location location{};
    const std::uint8_t which = bytes.byte();
    if (which < 60) return {};
    if (which < 150) location = block;
    if (which >= 150) {
        location.block = which < 220 ? blocks[which % 6] : bytes.number<std::uint64_t>() | 1;
        location.bytes = bytes.number<std::uint32_t>() % (2 * kBlock);
    }
    location.within = (which & 1) != 0 ? bytes.number<std::uint64_t>() : bytes.byte() * 64U;
    return location;
}

void write_post(Reader& bytes, Post& post, const Host& host, std::string_view signature) {
    post.send = location_of(bytes, host);
    post.recv = location_of(bytes, host);
    const bool honest = bytes.byte() < 250;
    post.signature_bytes = honest ? signature.size() : bytes.number<std::uint64_t>();
    std::memcpy(post.signature, signature.data(), signature.size());
    if (!honest) post.signature[0] = static_cast<std::byte>(bytes.byte());
    const std::string_view data = bytes.piece();
    std::memcpy(post.data, data.data(), data.size());
}

void write_freed(Reader& bytes, FreedBlocks& freed, const Location& block) {
    // its count, and the blocks
    auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(&freed);
    words[0].fetch_add(bytes.flag() ? bytes.byte() : 1000);  // after so many all are unmapped
    for (std::size_t i = 1; i < sizeof freed / sizeof *words; ++i)
        words[i].store(block.block + 4096 * bytes.below(3));
}

struct Message {
    ddp_collective c{};
    std::vector<std::byte> send, recv;
};

void make_message(Reader& bytes, Host& host, Message& m) {
    static const ddp_dtype dtypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_I32,
                                       DDP_I64, DDP_U8,   DDP_C64, DDP_C128};
    static const ddp_reduce_op ops[] = {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX};
    ddp_collective& c = m.c;
    c.struct_size = sizeof c;
    c.kind = static_cast<ddp_collective_kind>(1 + bytes.below(6));
    c.dtype = dtypes[bytes.below(9)];
    c.op = ops[bytes.below(4)];
    if (!cpu::can_reduce(c.dtype, c.op)) c.op = DDP_SUM;
    c.root = static_cast<std::int32_t>(bytes.below(kWorld));
    c.count = c.kind == DDP_COLLECTIVE_BARRIER ? 0 : bytes.number<std::uint16_t>() % kMostElements;
    c.scale = 1;
    c.timeout_ms = 1;
    const std::size_t size = c.count * dtype_size(c.dtype);
    const bool exchange = c.kind == DDP_COLLECTIVE_ALL_TO_ALL;
    const std::size_t sent =
        c.kind == DDP_COLLECTIVE_REDUCE_SCATTER || exchange ? size * kWorld : size;
    const std::size_t received =
        c.kind == DDP_COLLECTIVE_ALLGATHER || exchange ? size * kWorld : size;
    const bool in_block = bytes.flag() && sent <= kBlock && received <= kBlock;
    const bool in_place = bytes.flag() && sent == received && !exchange;
    m.send.resize(in_block ? 0 : sent);
    m.recv.resize(in_block && !exchange ? 0 : received);
    c.recv = in_block && !exchange ? host.block() : m.recv.data();
    c.send = in_block ? host.block() : in_place ? c.recv : m.send.data();
}

}  // namespace

DDP_FUZZ_TARGET(shm_posts, input) {
    static Host& host = *new Host;
    static char signature[72] = "a signature", theirs[kSignatureBytes];
    Reader bytes(input);
    Message message;
    make_message(bytes, host, message);
    message.c.signature = signature;
    message.c.theirs = theirs;
    message.c.signature_size = sizeof signature;
    for (std::uint32_t parity : {0u, 1u})
        write_post(bytes, host.post(parity), host, {signature, sizeof signature});
    write_freed(bytes, host.peer().freed, host.block_of_peer());
    host.shared().claimed.store(bytes.number<std::uint64_t>());
    host.shared().done.store(bytes.number<std::uint64_t>());
    host.peer().left.store(bytes.flag());
    const bool comes = bytes.byte() < 250;
    const std::string_view staged = bytes.rest().substr(0, kStaging);
    for (int slot = 0; slot < Layout::kSlots; ++slot)
        std::memcpy(host.staging(slot), staged.data(), staged.size());
    if (comes) host.come();
    accepts([&] { perform(host.team(), message.c); });
    if (comes) host.count_barriers();
}

}  // namespace fuzz::shm_posts
