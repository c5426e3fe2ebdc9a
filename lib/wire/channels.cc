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
constexpr std::size_t kLarge = 2 * Frames::whole(Frames::kLongest);

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

    // With room for `missing` bytes at least. False: the kernel has nothing now.
    bool fill(std::size_t missing) {
        unsigned char* to = room(missing);
        iovec piece{to, buffer_.size - buffer_.end};
        const std::size_t count = receive_pieces(fd_, &piece, 1);
        buffer_.end += count;
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

// ---- kEncrypted

// Frames from the caller's memory to the kernel, and back, encrypted and opened on the way. After a
// failure a direction no longer knows where it is: another call could repeat a nonce, or read from
// the middle of a frame.
class EncryptedChannel final : public Channel {
public:
    EncryptedChannel(Descriptor fd, Frames out, Frames in)
        : Channel(std::move(fd)), out_(std::move(out)), in_(std::move(in)) {}

    std::size_t send(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        receiving_.check();
        sending_.check();
        Parts parts(list, count);
        std::size_t taken = 0;
        try {
            while (parts.left() > 0 && taken < kOneCall) {
                const std::size_t size = std::min(parts.left(), Frames::kLongest);
                unsigned char* to =
                    outgoing_.room(Frames::whole(size), Frames::whole(parts.left() - size));
                if (to == nullptr) break;
                out_.seal(parts, size, to);
                outgoing_.add(Frames::whole(size));
                parts.skip(size);
                taken += size;
            }
            outgoing_.flush();
        } catch (...) {
            sending_.keep(0);
        }
        return taken;
    }

    bool flush() override {
        receiving_.check();
        sending_.check();
        return outgoing_.flush();
    }

    std::size_t receive(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        receiving_.check();
        Parts parts(list, count);
        std::size_t came = 0;
        try {
            while (parts.left() > 0 && came < kOneCall) {
                if (opened_ == 0 && !open_next(parts, came)) break;
                if (opened_ > 0) came += take_opened(parts);
            }
        } catch (...) {
            receiving_.keep(came);
        }
        return came;
    }

private:
    // Opens the next frame into `parts`, or where it is. False: it has not come as a whole.
    bool open_next(Parts& parts, std::size_t& came) {
        const std::size_t held = incoming_.held();
        if (held < Frames::kHeader) return incoming_.fill(Frames::kHeader - held);
        const std::optional<std::size_t> size = Frames::content_size(incoming_.front());
        if (!size) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        if (held < Frames::whole(*size)) return incoming_.fill(Frames::whole(*size) - held);
        iovec pieces[kPieces];
        std::size_t listed = *size;
        int count = parts.slice(pieces, kPieces, listed);
        const bool straight = listed == *size;
        if (!straight) {
            pieces[0] = {incoming_.front() + Frames::kHeader, *size};
            count = 1;
        }
        if (!in_.open(incoming_.front(), pieces, count))
            fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
        if (straight) {
            incoming_.skip(Frames::whole(*size));
            parts.skip(*size);
            came += *size;
        } else {
            incoming_.skip(Frames::kHeader);
            opened_ = *size;
        }
        return true;
    }

    std::size_t take_opened(Parts& parts) {
        const std::size_t size = std::min(opened_, parts.left());
        parts.copy_in(incoming_.front(), size);
        parts.skip(size);
        opened_ -= size;
        incoming_.skip(opened_ == 0 ? size + Frames::kTail : size);
        return size;
    }

    Frames out_;
    Frames in_;
    Outgoing outgoing_{fd()};
    Incoming incoming_{fd()};
    std::size_t opened_ = 0;  // bytes at the front of incoming_ that are for the caller
    Failure sending_;
    // ends sending, too; what the peer has sent can be read although nothing can be sent to it
    Failure receiving_;
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

std::unique_ptr<Channel> make_encrypted_channel(Descriptor fd, Frames out, Frames in) {
    return std::make_unique<EncryptedChannel>(std::move(fd), std::move(out), std::move(in));
}

std::unique_ptr<Channel> make_plain_channel(Descriptor fd) {
    return std::make_unique<PlainChannel>(std::move(fd));
}

}  // namespace libddp::wire
