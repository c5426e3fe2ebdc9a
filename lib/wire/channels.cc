#include "wire/channels.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "util/error.h"
#include "wire/parts.h"

namespace libddp::wire {
namespace {

constexpr const char* kConnectionEnded = "the connection ended";
constexpr const char* kChanged = "bytes of the connection were changed on the way";

// A call takes or brings at most about so much, so that one connection does not keep a thread from
// the others, nor exit() waiting.
constexpr std::size_t kOneCall = std::size_t{4} << 20;
// Pieces of one call of the kernel.
constexpr int kPieces = 64;

[[noreturn]] void broke(int error) {
    if (error == EPIPE || error == ECONNRESET) fail(DDP_ERROR_UNAVAILABLE, kConnectionEnded);
    fail(DDP_ERROR_UNAVAILABLE, "the connection broke: ", std::generic_category().message(error));
}

// 0: the kernel takes nothing now.
std::size_t send_pieces(int fd, iovec* pieces, int count) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<std::size_t>(count);
    while (true) {
        const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) return static_cast<std::size_t>(sent);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) broke(errno);
    }
}

// 0: the kernel has nothing now.
std::size_t receive_pieces(int fd, iovec* pieces, int count) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<std::size_t>(count);
    while (true) {
        const ssize_t came = recvmsg(fd, &message, MSG_DONTWAIT);
        if (came > 0) return static_cast<std::size_t>(came);
        if (came == 0) fail(DDP_ERROR_UNAVAILABLE, kConnectionEnded);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) broke(errno);
    }
}

// The failure of one direction. Afterwards the direction no longer knows where it is, so every call
// gets the same failure. Bytes that came before it are given to the caller first.
class Failure {
public:
    void check() const {
        if (error_) throw Error(*error_);
    }
    // Inside a catch block. Returns if something came.
    void keep(std::size_t came) {
        error_ = caught();
        if (came == 0) throw;
    }

private:
    std::optional<ErrorInfo> error_;
};

// The buffers of a connection grow from the first size to the second while they are filled. Longer
// ones would leave the cache of a processor before they are emptied.
constexpr std::size_t kSmall = std::size_t{4} << 10;
constexpr std::size_t kLarge = std::size_t{128} << 10;

// Bytes between two ends of a piece of memory.
struct Buffer {
    std::unique_ptr<unsigned char[]> bytes;
    std::size_t size = 0;
    std::size_t begin = 0;
    std::size_t end = 0;

    std::size_t held() const { return end - begin; }
    unsigned char* front() const { return bytes.get() + begin; }
    void drop() { *this = Buffer(); }
    void renew(std::size_t new_size) {
        drop();
        bytes.reset(new unsigned char[new_size]);
        size = new_size;
    }

    // Moves what it holds to the front, into new memory if `new_size` is another size.
    void move_to_front(std::size_t new_size) {
        if (new_size == size) {
            std::memmove(bytes.get(), front(), held());
        } else {
            std::unique_ptr<unsigned char[]> fresh(new unsigned char[new_size]);
            if (held() > 0) std::memcpy(fresh.get(), front(), held());
            bytes = std::move(fresh);
            size = new_size;
        }
        end -= begin;
        begin = 0;
    }
};

// Bytes on their way to the kernel.
class Outgoing {
public:
    explicit Outgoing(int fd) : fd_(fd) {}

    // Memory for so many bytes. Null: the kernel takes nothing, and enough is held. more: how many
    // bytes are likely to follow.
    unsigned char* room(std::size_t bytes, std::size_t more) {
        const std::size_t wanted = std::clamp(bytes + more, bytes, std::max(bytes, kLarge));
        if (buffer_.size - buffer_.end < bytes) flush();
        if (buffer_.held() == 0 && (buffer_.size < wanted || buffer_.size / 4 > wanted))
            buffer_.renew(wanted);
        if (buffer_.size - buffer_.end < bytes) {
            const std::size_t held = buffer_.held();
            if (held > kLarge / 2) return nullptr;
            buffer_.move_to_front(std::max(buffer_.size, held + bytes));
        }
        return buffer_.bytes.get() + buffer_.end;
    }
    void add(std::size_t bytes) { buffer_.end += bytes; }

    // True: the kernel has everything. An idle connection that sends little holds no memory.
    bool flush() {
        while (buffer_.held() > 0) {
            iovec piece{buffer_.front(), buffer_.held()};
            const std::size_t sent = send_pieces(fd_, &piece, 1);
            if (sent == 0) return false;
            buffer_.begin += sent;
        }
        buffer_.begin = buffer_.end = 0;
        if (buffer_.size <= kSmall) buffer_.drop();
        return true;
    }

private:
    const int fd_;
    Buffer buffer_;
};

// Bytes that came from the kernel, many in one call.
class Incoming {
public:
    explicit Incoming(int fd) : fd_(fd) {}

    std::size_t held() const { return buffer_.held(); }
    unsigned char* front() const { return buffer_.front(); }
    void skip(std::size_t bytes) { buffer_.begin += bytes; }

    // Memory for so many bytes after what is held.
    unsigned char* room(std::size_t bytes) {
        std::size_t size =
            std::max(buffer_.bytes == nullptr ? next_size_ : buffer_.size, buffer_.held() + bytes);
        if (full_) size = std::max(size, std::min(size * 4, kLarge));
        full_ = false;
        if (size != buffer_.size || buffer_.begin > 0) buffer_.move_to_front(size);
        return buffer_.bytes.get() + buffer_.end;
    }
    void add(std::size_t bytes) { buffer_.end += bytes; }

    // Brings `most` bytes at most, with room for `missing` at least. False: the kernel has nothing
    // now.
    bool fill(std::size_t missing, std::size_t most = kLarge) {
        unsigned char* to = room(missing);
        iovec piece{to, std::min(buffer_.size - buffer_.end, most)};
        const std::size_t count = receive_pieces(fd_, &piece, 1);
        add(count);
        brought_ += count;
        full_ = buffer_.end == buffer_.size;
        if (count == 0) rest();
        return count > 0;
    }

private:
    // The kernel has nothing. An idle connection holds no memory, unless it brought much before.
    void rest() {
        if (buffer_.held() == 0 && (brought_ < buffer_.size / 4 || buffer_.size <= kSmall)) {
            next_size_ = std::max(buffer_.size / 4, kSmall);
            buffer_.drop();
        }
        brought_ = 0;
    }

    const int fd_;
    Buffer buffer_;
    bool full_ = false;  // after the last call
    std::size_t next_size_ = kSmall;
    std::size_t brought_ = 0;  // since the kernel had nothing
};

// The common part of TLS and frames. After a failure a direction no longer knows where it is:
// another call could repeat a nonce, or read from the middle of a frame.
class ProtectedChannel : public Channel {
public:
    std::size_t send(const iovec* list, int count) final {
        const Cryptography inside;
        inside.require();
        receiving_.check();
        sending_.check();
        Parts parts(list, count);
        std::size_t taken = 0;
        try {
            while (parts.left() > 0 && taken < kOneCall) {
                const std::size_t size = write(parts);
                if (size == 0) break;
                parts.skip(size);
                taken += size;
            }
            outgoing_.flush();
        } catch (...) {
            sending_.keep(0);
        }
        return taken;
    }

    bool flush() final {
        receiving_.check();
        sending_.check();
        return outgoing_.flush();
    }

    std::size_t receive(const iovec* list, int count) final {
        const Cryptography inside;
        inside.require();
        receiving_.check();
        Parts parts(list, count);
        std::size_t came = 0;
        try {
            while (parts.left() > 0 && came < kOneCall) {
                if (ready_ > 0)
                    came += take_ready(parts);
                else if (!read(parts, came))
                    break;
            }
        } catch (...) {
            receiving_.keep(came);
        }
        return came;
    }

protected:
    explicit ProtectedChannel(Descriptor fd) : Channel(std::move(fd)) {}

    // Sends bytes from the front of `parts`, or puts them into outgoing_. Returns how many; 0:
    // there is no room now.
    virtual std::size_t write(const Parts& parts) = 0;
    // Reads what comes next: adds to `came` what it puts at the front of `parts`, or calls
    // set_ready(). False: nothing more came.
    virtual bool read(Parts& parts, std::size_t& came) = 0;

    // So many bytes at the front of incoming_ are for the caller, and so many after them for
    // nobody.
    void set_ready(std::size_t bytes, std::size_t tail) {
        ready_ = bytes;
        tail_ = tail;
    }

    Outgoing outgoing_{fd()};
    Incoming incoming_{fd()};

private:
    std::size_t take_ready(Parts& parts) {
        const std::size_t size = std::min(ready_, parts.left());
        parts.copy_in(incoming_.front(), size);
        parts.skip(size);
        ready_ -= size;
        incoming_.skip(ready_ == 0 ? size + tail_ : size);
        return size;
    }

    Failure sending_;
    // ends sending, too; what the peer has sent can be read although nothing can be sent to it
    Failure receiving_;
    std::size_t ready_ = 0;
    std::size_t tail_ = 0;
};

// ---- kTls

// TLS 1.3 after the handshake (RFC 8446, 5). OpenSSL's own record layer would copy each byte twice
// more at either end: this one encrypts from the caller's memory and decrypts into it.
class TlsChannel final : public ProtectedChannel {
public:
    TlsChannel(Descriptor fd, Records out, Records in)
        : ProtectedChannel(std::move(fd)), out_(std::move(out)), in_(std::move(in)) {}

private:
    // A handshake message that asks for no answer (RFC 8446, 4.6.3).
    static constexpr unsigned char kKeyUpdate[] = {24, 0, 0, 1, 0};
    static constexpr unsigned char kCloseNotify = 0;
    // Records one after another. OpenSSL has the same bound.
    static constexpr int kMostWithoutData = 32;
    // Messages that are not data are shorter. So is other content that is not opened into the
    // caller's memory.
    static constexpr std::size_t kShort = 64;

    std::size_t write(const Parts& parts) override {
        const std::size_t size = std::min(parts.left(), Records::kLongest);
        const std::size_t most = Records::whole(size) + Records::whole(sizeof kKeyUpdate);
        unsigned char* to = outgoing_.room(most, Records::whole(parts.left() - size));
        if (to == nullptr) return 0;
        if (records_ >= records_of_a_key_) to = replace_key(to);
        out_.seal(Records::Content::kData, parts, size, to);
        outgoing_.add(Records::whole(size));
        ++records_;
        return size;
    }

    unsigned char* replace_key(unsigned char* to) {
        const iovec message{const_cast<unsigned char*>(kKeyUpdate), sizeof kKeyUpdate};
        out_.seal(Records::Content::kHandshake, Parts(&message, 1), sizeof kKeyUpdate, to);
        out_.replace_key();
        outgoing_.add(Records::whole(sizeof kKeyUpdate));
        records_ = 0;
        return to + Records::whole(sizeof kKeyUpdate);
    }

    // Opens the next record where it is, or into `parts`.
    bool read(Parts& parts, std::size_t& came) override {
        const std::size_t held = incoming_.held();
        if (held < Records::kHeader) return incoming_.fill(Records::kHeader - held);
        const std::optional<std::size_t> size = Records::content_size(incoming_.front());
        if (!size) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        if (held < Records::whole(*size)) return incoming_.fill(Records::whole(*size) - held);
        iovec pieces[kPieces];
        std::size_t listed = *size;
        const bool straight = *size > kShort && *size <= parts.left();
        const int count = straight ? parts.slice(pieces, kPieces, listed) : 0;
        if (!straight || listed < *size) {
            pieces[0] = {incoming_.front() + Records::kHeader, *size};
            accept(in_.open(incoming_.front(), *size, pieces, 1), *size);
            return true;
        }
        if (in_.open(incoming_.front(), *size, pieces, count) != Records::Content::kData)
            fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        incoming_.skip(Records::whole(*size));
        without_data_ = 0;
        parts.skip(*size);
        came += *size;
        return true;
    }

    // The record at the front has been opened where it is.
    void accept(std::optional<Records::Content> content, std::size_t size) {
        const unsigned char* bytes = incoming_.front() + Records::kHeader;
        if (content == Records::Content::kData && size > 0) {
            incoming_.skip(Records::kHeader);
            set_ready(size, Records::kTail);
            without_data_ = 0;
            return;
        }
        if (++without_data_ > kMostWithoutData)
            fail(DDP_ERROR_PERMISSION_DENIED, "the other end sends records without data");
        if (content == Records::Content::kAlert && size == 2) {
            if (bytes[1] == kCloseNotify) fail(DDP_ERROR_UNAVAILABLE, kConnectionEnded);
            fail(DDP_ERROR_PERMISSION_DENIED, kChanged, " (alert ", static_cast<int>(bytes[1]),
                 " of the other end)");
        }
        if (content == Records::Content::kHandshake && size == sizeof kKeyUpdate &&
            std::memcmp(bytes, kKeyUpdate, size - 1) == 0 && bytes[size - 1] <= 1) {
            in_.replace_key();
            if (bytes[size - 1] == 1) records_ = records_of_a_key_;  // the peer asks for the same
        } else if (content != Records::Content::kData) {
            fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        }
        incoming_.skip(Records::whole(size));
    }

    Records out_;
    Records in_;
    int without_data_ = 0;  // records since the last with data
    const std::uint64_t records_of_a_key_ = records_of_a_key;
    std::uint64_t records_ = 0;  // that this end has sent with its key
};

// ---- kAuth

// A frame: u32 length of the payload, little endian | payload | code of both.
constexpr std::size_t kHeader = 4;
constexpr std::size_t kPayload = std::size_t{64} << 10;
constexpr std::size_t kCode = FrameCodes::kSize;
// Where so much of a payload is missing, it goes straight to the caller's memory.
constexpr std::size_t kStraight = std::size_t{8} << 10;
// Bytes that one call reads ahead into the channel's memory, because several small frames may have
// come.
constexpr std::size_t kAhead = std::size_t{16} << 10;

void put_length(unsigned char* to, std::size_t length) {
    for (std::size_t i = 0; i < kHeader; ++i) to[i] = static_cast<unsigned char>(length >> (8 * i));
}

std::size_t get_length(const unsigned char* from) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kHeader; ++i)
        length |= static_cast<std::size_t>(from[i]) << (8 * i);
    return length;
}

// Payloads travel between the socket and the caller's memory. The channel keeps only the rest of a
// frame that the kernel did not take as a whole, and the beginning of one that has not come as a
// whole.
class AuthChannel final : public ProtectedChannel {
public:
    AuthChannel(Descriptor fd, FrameCodes out, FrameCodes in)
        : ProtectedChannel(std::move(fd)), out_(std::move(out)), in_(std::move(in)) {}

private:
    std::size_t write(const Parts& parts) override {
        if (!outgoing_.flush()) return 0;
        unsigned char header[kHeader];
        unsigned char code[kCode];
        iovec pieces[kPieces + 2];
        std::size_t size = kPayload;
        int count = parts.slice(pieces + 1, kPieces, size) + 1;
        put_length(header, size);
        pieces[0] = {header, kHeader};
        out_.begin();
        for (int i = 0; i < count; ++i) out_.add(pieces[i].iov_base, pieces[i].iov_len);
        out_.end(code);
        pieces[count++] = {code, kCode};
        const std::size_t sent = send_pieces(fd(), pieces, count);
        const std::size_t whole = kHeader + size + kCode;
        if (sent < whole) {
            Parts rest(pieces, count);
            rest.skip(sent);
            rest.copy_out(outgoing_.room(whole - sent, 0), whole - sent);
            outgoing_.add(whole - sent);
        }
        return size;
    }

    // Proves the next frame where it is, or brings it straight to `parts`.
    bool read(Parts& parts, std::size_t& came) override {
        const std::size_t held = incoming_.held();
        if (held < kHeader) return incoming_.fill(kHeader - held, kAhead);
        const std::size_t size = get_length(incoming_.front());
        if (size == 0 || size > kPayload) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        const std::size_t whole = kHeader + size + kCode;
        if (held < whole) {
            const std::size_t missing = whole - held;
            if (size <= parts.left() && missing >= kStraight + kCode)
                return bring_straight(parts, size, came);
            return incoming_.fill(missing, std::max(missing, kAhead));
        }
        in_.begin();
        in_.add(incoming_.front(), kHeader + size);
        check(incoming_.front() + kHeader + size);
        incoming_.skip(kHeader);
        set_ready(size, kCode);
        return true;
    }

    void check(const unsigned char* code) {
        if (!in_.matches(code)) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
    }

    // The rest of a payload of which a part is held already. Each byte is copied once at most.
    bool bring_straight(Parts& parts, std::size_t size, std::size_t& came) {
        const std::size_t early = incoming_.held() - kHeader;  // bytes of the payload
        // the code, and the next frame's header
        unsigned char tail[kCode + kHeader];
        iovec pieces[kPieces + 1];
        Parts rest = parts;
        rest.skip(early);
        const std::size_t straight = size - early;
        std::size_t listed = straight;
        const int count = rest.slice(pieces, kPieces, listed);
        if (listed < straight) return incoming_.fill(straight + kCode, straight + kCode);
        pieces[count] = {tail, sizeof tail};
        const std::size_t got = receive_pieces(fd(), pieces, count + 1);
        if (got == 0) return false;
        if (got < straight + kCode) {
            const std::size_t payload = std::min(got, straight);
            unsigned char* to = incoming_.room(got);
            rest.copy_out(to, payload);
            std::memcpy(to + payload, tail, got - payload);
            incoming_.add(got);
            return true;
        }
        parts.copy_in(incoming_.front() + kHeader, early);
        in_.begin();
        in_.add(incoming_.front(), kHeader + early);
        for (int i = 0; i < count; ++i) in_.add(pieces[i].iov_base, pieces[i].iov_len);
        check(tail);
        parts.skip(size);
        came += size;
        incoming_.skip(kHeader + early);
        const std::size_t next = got - straight - kCode;
        std::memcpy(incoming_.room(next), tail + kCode, next);
        incoming_.add(next);
        return true;
    }

    FrameCodes out_;
    FrameCodes in_;
};

// ---- kPlain

class PlainChannel final : public Channel {
public:
    explicit PlainChannel(Descriptor fd) : Channel(std::move(fd)) {}

    std::size_t send(const iovec* list, int count) override {
        Parts parts(list, count);
        std::size_t taken = 0;
        while (parts.left() > 0 && taken < kOneCall) {
            iovec pieces[kPieces];
            std::size_t size = kOneCall;
            const std::size_t sent = send_pieces(fd(), pieces, parts.slice(pieces, kPieces, size));
            parts.skip(sent);
            taken += sent;
            if (sent < size) break;
        }
        return taken;
    }

    bool flush() override { return true; }

    std::size_t receive(const iovec* list, int count) override {
        Parts parts(list, count);
        if (parts.left() == 0) return 0;
        iovec pieces[kPieces];
        std::size_t size = kOneCall;
        return receive_pieces(fd(), pieces, parts.slice(pieces, kPieces, size));
    }
};

}  // namespace

std::unique_ptr<Channel> make_tls_channel(Descriptor fd, Records out, Records in) {
    return std::make_unique<TlsChannel>(std::move(fd), std::move(out), std::move(in));
}

std::unique_ptr<Channel> make_auth_channel(Descriptor fd, FrameCodes out, FrameCodes in) {
    return std::make_unique<AuthChannel>(std::move(fd), std::move(out), std::move(in));
}

std::unique_ptr<Channel> make_plain_channel(Descriptor fd) {
    return std::make_unique<PlainChannel>(std::move(fd));
}

}  // namespace libddp::wire
