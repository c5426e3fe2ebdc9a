#include "rendezvous/etcd/replica.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "util/error.h"

namespace libddp {
namespace {

// A snapshot is made when the batches since the last one are so many that reading them takes those
// who join longer.
constexpr std::size_t kManyRecords = 2048;
constexpr std::size_t kSmallLog = std::size_t{8} << 20;
// The longest batch: a request, and a few small ones with it.
constexpr std::size_t kLongestBatch = limits::kFrame + (std::size_t{1} << 20);

constexpr std::string_view kAlive = "alive/";
constexpr std::string_view kLog = "log/";
constexpr std::string_view kHead = "head";
constexpr std::string_view kBury = "bury";
constexpr char kLastPiece = 'l';
constexpr char kMorePieces = 'm';

std::string hex(std::uint64_t number) {
    std::string text(16, '0');
    for (std::size_t i = 16; i-- > 0; number >>= 4) text[i] = "0123456789abcdef"[number & 15];
    return text;
}

std::optional<std::uint64_t> from_hex(std::string_view text) {
    std::uint64_t number = 0;
    if (text.size() != 16) return std::nullopt;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
    if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
}

bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

std::optional<std::uint64_t> take_number(std::string_view& text) {
    const auto number = from_hex(text.substr(0, 16));
    text.remove_prefix(std::min<std::size_t>(16, text.size()));
    return number;
}

}  // namespace

std::string EtcdSnapshotHead::encode() const {
    ByteWriter out;
    out.u64(id);
    out.u64(pieces);
    out.i64(revision);
    return out.take();
}

EtcdSnapshotHead EtcdSnapshotHead::decode(std::string_view bytes) {
    ByteReader in(bytes);
    EtcdSnapshotHead head;
    head.id = in.u64();
    head.pieces = in.u64();
    head.revision = in.i64();
    in.end();
    return head;
}

std::string EtcdReplica::alive_key(std::uint64_t owner) {
    return str(kAlive, hex(owner));
}
std::string EtcdReplica::log_key(std::uint64_t owner, std::uint64_t batch, std::uint64_t piece) {
    return str(kLog, hex(owner), "/", hex(batch), "/", hex(piece));
}
std::string EtcdReplica::bury_key(std::uint64_t owner) {
    return str(kLog, hex(owner), "/", kBury);
}
std::string EtcdReplica::snapshot_key(std::uint64_t id, std::uint64_t piece) {
    return str(hex(id), "/", hex(piece));
}

std::string EtcdReplica::piece(std::string_view bytes, bool is_last) {
    std::string value(1, is_last ? kLastPiece : kMorePieces);
    value.append(bytes);
    return value;
}

void EtcdReplica::put(std::string_view key, std::string_view value, std::int64_t revision,
                      const Applied& applied) {
    if (take(key, kAlive)) {
        if (auto owner = from_hex(key)) owners_[*owner].alive = true;
        return;
    }
    if (key == kHead) {
        head_ = EtcdSnapshotHead::decode(value);
        records_ = 0;
        bytes_ = 0;
        std::erase_if(owners_, [&](const auto& item) {
            const Owner& owner = item.second;
            return !owner.alive && owner.whole && owner.newest <= head_.revision;
        });
        return;
    }
    if (!take(key, kLog) || revision <= head_.revision) return;
    const auto owner = take_number(key);
    if (!owner || !take(key, "/")) return;
    Owner& from = owners_[*owner];
    if (key == kBury) {
        if (from.buried) return;
        from.buried = true;
        from.newest = revision;
        from.partial = {};
        from.whole = true;
        state_.apply(*owner, Request{Op::kGoodbye});
        ++records_;
        return;
    }
    const auto batch = take_number(key);
    if (!batch || !take(key, "/")) return;
    const auto piece = take_number(key);
    if (!piece || !key.empty() || value.empty()) return;
    // Written twice.
    if (*batch < from.batch || (*batch == from.batch && *piece < from.pieces)) return;
    if (*piece == 0) {
        from.batch = *batch;
        from.partial.clear();
    } else if (*batch != from.batch || *piece != from.pieces) {
        fail(DDP_ERROR_IO, "a piece of a batch is missing");
    }
    from.pieces = *piece + 1;
    from.newest = revision;
    ++records_;
    bytes_ += value.size();
    from.whole = value.front() == kLastPiece;
    value.remove_prefix(1);
    if (from.partial.size() + value.size() > kLongestBatch)
        fail(DDP_ERROR_IO, "a batch is too long");
    if (from.whole && from.partial.empty()) return apply(*owner, value, applied);
    from.partial.append(value);
    if (!from.whole) return;
    const std::string whole = std::exchange(from.partial, {});
    apply(*owner, whole, applied);
}

void EtcdReplica::apply(std::uint64_t owner, std::string_view batch, const Applied& applied) {
    FrameReader frames;
    frames.feed(batch);
    while (auto frame = frames.next()) {
        auto outcome = state_.apply(owner, decode_request(*frame));
        if (applied) applied({owner, frame->id}, std::move(outcome));
    }
    if (frames.pending() != 0) fail(DDP_ERROR_IO, "a batch is cut off");
}

void EtcdReplica::removed(std::string_view key) {
    if (!take(key, kAlive)) return;
    const auto owner = from_hex(key);
    if (auto found = owner ? owners_.find(*owner) : owners_.end(); found != owners_.end())
        found->second.alive = false;
}

void EtcdReplica::only_alive(const std::vector<std::string>& keys) {
    for (auto& [owner, is] : owners_)
        if (std::find(keys.begin(), keys.end(), alive_key(owner)) == keys.end()) is.alive = false;
}

bool EtcdReplica::is_alive(std::uint64_t owner) const {
    auto found = owners_.find(owner);
    return found != owners_.end() && found->second.alive;
}

std::uint64_t EtcdReplica::lowest_alive() const {
    for (const auto& [owner, is] : owners_)
        if (is.alive) return owner;
    return 0;
}

std::vector<std::uint64_t> EtcdReplica::to_bury() const {
    std::set<std::uint64_t> gone = state_.owners();
    for (const auto& [owner, is] : owners_)
        if (!is.whole) gone.insert(owner);
    std::erase_if(gone, [&](std::uint64_t owner) { return is_alive(owner); });
    return {gone.begin(), gone.end()};
}

bool EtcdReplica::wants_snapshot() const {
    if (records_ < kManyRecords && bytes_ < kSmallLog + 4 * state_.bytes()) return false;
    for (const auto& [_, is] : owners_)
        if (!is.whole) return false;
    return true;
}

std::string EtcdReplica::snapshot() const {
    ByteWriter out;
    std::uint32_t count = 0;
    for (const auto& [_, is] : owners_) count += is.alive;
    out.u32(count);
    for (const auto& [owner, is] : owners_) {
        if (!is.alive) continue;
        out.u64(owner);
        out.u64(is.batch);
        out.u64(is.pieces);
    }
    state_.snapshot([&](std::uint64_t owner, const Request& request) {
        out.raw(encode_request(owner, request));
    });
    return out.take();
}

void EtcdReplica::load(std::string_view snapshot, const EtcdSnapshotHead& head) {
    head_ = head;
    ByteReader in(snapshot);
    for (std::uint32_t count = in.u32(); count > 0; --count) {
        Owner& owner = owners_[in.u64()];
        owner.batch = in.u64();
        owner.pieces = in.u64();
        snapshot.remove_prefix(3 * sizeof(std::uint64_t));
    }
    snapshot.remove_prefix(sizeof(std::uint32_t));
    FrameReader frames;
    frames.feed(snapshot);
    while (auto frame = frames.next()) state_.apply(frame->id, decode_request(*frame));
    if (frames.pending() != 0) fail(DDP_ERROR_IO, "a snapshot is cut off");
}

std::vector<EtcdReplica::Logged> EtcdReplica::logged() const {
    std::vector<Logged> all;
    for (const auto& [owner, is] : owners_)
        if (is.batch != 0 || is.buried) all.push_back({owner, is.batch, is.buried});
    return all;
}

}  // namespace libddp
