#include "backends/tcp/lane.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "util/error.h"

namespace libddp::tcp {
namespace {

// Bytes that may be read beyond the message under way: several small messages arrive in one system
// call.
constexpr std::size_t kAheadBytes = std::size_t{32} << 10;
// The most that one system call sends, so that this thread soon looks at what has come.
constexpr std::size_t kSendBytes = std::size_t{1} << 20;
constexpr int kSendParts = 16;

}  // namespace

void Lane::send(MessageType type, std::uint64_t operation, const void* data, std::size_t bytes) {
    outgoing_.push_back({{type, 0, operation, bytes}, static_cast<const char*>(data), 0});
}

void Lane::expect(MessageType type, std::uint64_t operation, void* into, std::size_t bytes,
                  int* missing) {
    expected_.push_back({{type, 0, operation, bytes}, static_cast<char*>(into), missing});
}

// The connection that broke first says little about the cause: survivors close theirs too, to tell
// the others.
Error Lane::with_peer(const Error& error) const {
    const ErrorInfo& info = error.info();
    if (info.rank >= 0) return error;
    const bool broken = info.code == DDP_ERROR_UNAVAILABLE;
    return Error(broken ? DDP_ERROR_RANK_FAILED : info.code,
                 str(broken ? "a rank went away: " : "", "the connection with rank ", peer_, ": ",
                     info.message));
}

bool Lane::move() {
    try {
        bool sent = false;
        try {
            sent = sending() && send_some();
        } catch (const Error&) {
            // The peer's last message says more than the broken connection does.
            if (!receiving() || !receive_some()) throw;
            return true;
        }
        const bool received = receiving() && receive_some();
        return sent || received;
    } catch (const Error& error) {
        throw with_peer(error);
    }
}

bool Lane::send_some() {
    bool moved = false;
    while (!outgoing_.empty()) {
        std::array<iovec, kSendParts> parts;
        int count = 0;
        std::size_t bytes = 0;
        for (auto it = outgoing_.begin();
             it != outgoing_.end() && count + 2 <= kSendParts && bytes < kSendBytes; ++it) {
            const std::size_t header_sent = std::min(it->sent, sizeof(Header)),
                              data_sent = it->sent - header_sent;
            if (header_sent < sizeof(Header))
                parts[static_cast<std::size_t>(count++)] = {
                    reinterpret_cast<char*>(&it->header) + header_sent,
                    sizeof(Header) - header_sent};
            const std::size_t left =
                std::min<std::size_t>(it->header.bytes - data_sent, kSendBytes);
            if (left > 0)
                parts[static_cast<std::size_t>(count++)] = {const_cast<char*>(it->data) + data_sent,
                                                            left};
            bytes += left;
        }
        std::size_t taken = channel_->send(parts.data(), count);
        if (taken == 0) return moved;
        moved = true;
        unflushed_ = true;
        while (taken > 0) {
            Outgoing& front = outgoing_.front();
            const std::size_t step =
                std::min<std::size_t>(taken, sizeof(Header) + front.header.bytes - front.sent);
            front.sent += step;
            taken -= step;
            if (front.sent < sizeof(Header) + front.header.bytes) break;
            outgoing_.pop_front();
        }
        // One turn of long messages at a time: what comes in must not wait for all that goes out.
        if (bytes >= kSendBytes) break;
    }
    if (unflushed_ && outgoing_.empty()) unflushed_ = !channel_->flush();
    return moved;
}

bool Lane::receive_some() {
    bool moved = false;
    while (receiving()) {
        if (receive_once() == 0) break;
        moved = true;
    }
    return moved;
}

// Returns how many bytes came, from the connection or from what was read ahead.
std::size_t Lane::receive_once() {
    if (!have_header_) {
        if (ahead_end_ - ahead_begin_ >= sizeof(Header)) {
            read_header();
            return sizeof(Header);
        }
    } else if (ahead_begin_ < ahead_end_ || received_ == expected_.front().header.bytes) {
        Expected& front = expected_.front();
        const std::size_t count =
            std::min<std::size_t>(ahead_end_ - ahead_begin_, front.header.bytes - received_);
        std::memcpy(front.into + received_, ahead_.data() + ahead_begin_, count);
        ahead_begin_ += count;
        take_data(count);
        return std::max<std::size_t>(count, 1);
    }
    make_room_ahead();
    std::array<iovec, 2> parts;
    int count = 0;
    std::size_t straight = 0;
    if (have_header_) {
        Expected& front = expected_.front();
        straight = front.header.bytes - received_;
        parts[static_cast<std::size_t>(count++)] = {front.into + received_, straight};
    }
    parts[static_cast<std::size_t>(count++)] = {ahead_.data() + ahead_end_,
                                                ahead_.size() - ahead_end_};
    const std::size_t came = channel_->receive(parts.data(), count);
    const std::size_t data = std::min(came, straight);
    ahead_end_ += came - data;
    if (data > 0) take_data(data);
    return came;
}

// Only the beginning of a header can be there, or nothing.
void Lane::make_room_ahead() {
    if (ahead_.empty()) ahead_.resize(kAheadBytes);
    if (ahead_begin_ == ahead_end_) ahead_begin_ = ahead_end_ = 0;
    if (ahead_begin_ == 0) return;
    std::memmove(ahead_.data(), ahead_.data() + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= std::exchange(ahead_begin_, 0);
}

void Lane::peer_closed() {
    ended_ = true;
    if (number_ != 0 || ahead_begin_ < ahead_end_) return;  // lane 0 tells why
    make_room_ahead();
    try {
        // These bytes belong to a message that will be expected later, or to a goodbye.
        iovec part{ahead_.data(), ahead_.size()};
        ahead_end_ = channel_->receive(&part, 1);
    } catch (const Error& error) {
        throw with_peer(error);
    }
}

void Lane::read_header() {
    Header header;
    std::memcpy(&header, ahead_.data() + ahead_begin_, sizeof header);
    if (header.type == MessageType::kGoodbye)
        throw Error(
            ErrorInfo{DDP_ERROR_RANK_FAILED, str("rank ", peer_, " left the group"), peer_});
    const Header& wanted = expected_.front().header;
    if (header.type != wanted.type || header.operation != wanted.operation ||
        header.bytes != wanted.bytes) {
        fault_ = Fault::kOtherMessage;
        return;
    }
    ahead_begin_ += sizeof header;
    have_header_ = true;
    received_ = 0;
    if (header.bytes == 0) take_data(0);
}

void Lane::take_data(std::size_t count) {
    received_ += count;
    const Expected& front = expected_.front();
    if (received_ < front.header.bytes) return;
    --*front.missing;
    have_header_ = false;
    ended_ = false;  // what follows is not known
    expected_.pop_front();
}

void Lane::forget() {
    expected_.clear();
    cut_ = cut_ || (!outgoing_.empty() && outgoing_.front().sent > 0);
    outgoing_.clear();
}

}  // namespace libddp::tcp
