#include "wire/channel.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "util/error.h"
#include "wire/channels.h"
#include "wire/parts.h"

namespace libddp::wire {
namespace {

constexpr const char* kEnded = "the connection ended";
constexpr const char* kChanged = "bytes of the connection were changed on the way";

// A call takes or brings at most about so much, so that one connection does not keep a thread from the others, nor exit() waiting.
constexpr std::size_t kOneCall = std::size_t{4} << 20;
// Pieces of one call of the kernel.
constexpr int kPieces = 64;

[[noreturn]] void broke(int error) {
    if (error == EPIPE || error == ECONNRESET) fail(DDP_ERROR_UNAVAILABLE, kEnded);
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
        if (came == 0) fail(DDP_ERROR_UNAVAILABLE, kEnded);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) broke(errno);
    }
}

// What came before a failure is given to the caller first, and then the failure, in every call.
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

// ---- kTls

// A record carries at most so much, and grows by less than kOverhead.
constexpr std::size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr std::size_t kOverhead = 256;

class TlsChannel final : public Channel {
public:
    TlsChannel(Descriptor fd, Tls tls) : Channel(std::move(fd)), tls_(std::move(tls)) { tls_.pipe->open_up(); }

    std::size_t send(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        failure_.check();
        Parts parts(list, count);
        std::size_t taken = 0;
        while (parts.left() > 0 && taken < kOneCall) {
            const std::size_t size = std::min(parts.left(), kRecord);
            if (!tls_.pipe->make_room(size + kOverhead, parts.left() - size)) break;
            write_record(parts, size);
            parts.skip(size);
            taken += size;
        }
        tls_.pipe->flush();
        return taken;
    }

    bool flush() override {
        failure_.check();
        return tls_.pipe->flush();
    }

    std::size_t receive(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        failure_.check();
        Parts parts(list, count);
        std::size_t came = 0;
        try {
            while (parts.left() > 0 && came < kOneCall) {
                const iovec piece = parts.front();
                const std::size_t size = read(piece.iov_base, piece.iov_len);
                if (size == 0) break;
                parts.skip(size);
                came += size;
            }
        } catch (const Error&) {
            failure_.keep(came);
        }
        return came;
    }

private:
    void write_record(const Parts& parts, std::size_t size) {
        const iovec piece = parts.front();
        const void* from = piece.iov_base;
        char gathered[kRecord];
        if (piece.iov_len < size) {
            parts.copy_out(gathered, size);
            from = gathered;
        }
        if (++records_ > records_of_a_key_) {
            records_ = 1;
            SSL_key_update(tls_.ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
        }
        std::size_t written = 0;
        if (SSL_write_ex(tls_.ssl.get(), from, size, &written) != 1 || written != size)
            fail(DDP_ERROR_INTERNAL, "OpenSSL does not encrypt: ", take_tls_failure().text);
    }

    std::size_t read(void* to, std::size_t size) {
        tls_.pipe->clear();
        std::size_t count = 0;
        if (SSL_read_ex(tls_.ssl.get(), to, size, &count) == 1) return count;
        switch (tls_.pipe->stop()) {
            case Pipe::Stop::kNothingYet:
                return 0;
            case Pipe::Stop::kEnded:
                fail(DDP_ERROR_UNAVAILABLE, kEnded);
            case Pipe::Stop::kBroken:
                broke(tls_.pipe->error());
            case Pipe::Stop::kNoMemory:
                fail(DDP_ERROR_OUT_OF_MEMORY, "out of memory");
            default:
                break;
        }
        if ((SSL_get_shutdown(tls_.ssl.get()) & SSL_RECEIVED_SHUTDOWN) != 0 &&
            SSL_get_error(tls_.ssl.get(), 0) == SSL_ERROR_ZERO_RETURN)
            fail(DDP_ERROR_UNAVAILABLE, kEnded);
        const TlsFailure failure = take_tls_failure();
        if (failure.reason == ERR_R_MALLOC_FAILURE) fail(DDP_ERROR_OUT_OF_MEMORY, "out of memory");
        fail(DDP_ERROR_PERMISSION_DENIED, kChanged, " (", failure.text, ")");
    }

    Tls tls_;
    Failure failure_;
    const std::uint64_t records_of_a_key_ = records_of_a_key;
    std::uint64_t records_ = 0;  // that this end has sent with its key
};

// ---- kAuth

// A frame: u32 length of the payload, little endian | payload | code of both.
constexpr std::size_t kHeader = 4;
constexpr std::size_t kPayload = std::size_t{64} << 10;
constexpr std::size_t kCode = FrameCodes::kSize;
constexpr std::size_t kFrame = kHeader + kPayload + kCode;
// Where so much of a payload is missing, it goes straight to the caller's memory.
constexpr std::size_t kStraight = std::size_t{8} << 10;
// What is read into the channel's memory in the hope of several small frames.
constexpr std::size_t kAhead = std::size_t{16} << 10;

void put_length(unsigned char* to, std::size_t length) {
    for (std::size_t i = 0; i < kHeader; ++i) to[i] = static_cast<unsigned char>(length >> (8 * i));
}

std::size_t get_length(const char* from) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kHeader; ++i)
        length |= static_cast<std::size_t>(static_cast<unsigned char>(from[i])) << (8 * i);
    return length;
}

// Payloads travel between the socket and the caller's memory. The channel keeps only the rest of a frame that the kernel did not take as
// a whole, and the beginning of one that has not come as a whole.
class AuthChannel final : public Channel {
public:
    AuthChannel(Descriptor fd, FrameCodes out, FrameCodes in)
        : Channel(std::move(fd)), out_(std::move(out)), in_(std::move(in)) {}

    std::size_t send(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        failure_.check();
        Parts parts(list, count);
        std::size_t taken = 0;
        while (parts.left() > 0 && taken < kOneCall && flush()) {
            const std::size_t size = send_frame(parts);
            parts.skip(size);
            taken += size;
        }
        return taken;
    }

    bool flush() override {
        while (rest_begin_ < rest_end_) {
            iovec piece{rest_.get() + rest_begin_, rest_end_ - rest_begin_};
            const std::size_t sent = send_pieces(fd(), &piece, 1);
            if (sent == 0) return false;
            rest_begin_ += sent;
        }
        return true;
    }

    std::size_t receive(const iovec* list, int count) override {
        const Cryptography inside;
        inside.require();
        failure_.check();
        Parts parts(list, count);
        std::size_t came = 0;
        try {
            while (parts.left() > 0 && came < kOneCall) {
                if (proved_ > 0)
                    came += take_proved(parts);
                else if (!next_frame(parts, came))
                    break;
            }
        } catch (const Error&) {
            failure_.keep(came);
        }
        return came;
    }

private:
    std::size_t send_frame(const Parts& parts) {
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
            if (rest_ == nullptr) rest_.reset(new char[kFrame]);
            Parts rest(pieces, count);
            rest.skip(sent);
            rest_begin_ = 0;
            rest_end_ = whole - sent;
            rest.copy_out(rest_.get(), rest_end_);
        }
        return size;
    }

    // The proved payload is at held_begin_, and its code after it.
    std::size_t take_proved(Parts& parts) {
        const std::size_t size = std::min(proved_, parts.left());
        parts.copy_in(held_.get() + held_begin_, size);
        parts.skip(size);
        proved_ -= size;
        held_begin_ += size;
        if (proved_ == 0) held_begin_ += kCode;
        return size;
    }

    // Proves the next frame where it is, or brings it straight to `parts`. False: nothing more came.
    bool next_frame(Parts& parts, std::size_t& came) {
        const std::size_t held = held_end_ - held_begin_;
        std::size_t missing = kHeader - std::min(held, kHeader);
        if (held >= kHeader) {
            const std::size_t size = get_length(held_.get() + held_begin_);
            if (size == 0 || size > kPayload) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
            const std::size_t whole = kHeader + size + kCode;
            if (held >= whole) {
                prove(size);
                return true;
            }
            missing = whole - held;
            if (size <= parts.left() && missing >= kStraight + kCode) return bring_straight(parts, size, came);
        }
        return fill(missing);
    }

    void prove(std::size_t size) {
        in_.begin();
        in_.add(held_.get() + held_begin_, kHeader + size);
        check(held_.get() + held_begin_ + kHeader + size);
        held_begin_ += kHeader;
        proved_ = size;
    }

    void check(const char* code) {
        if (!in_.matches(reinterpret_cast<const unsigned char*>(code))) fail(DDP_ERROR_PERMISSION_DENIED, kChanged);
    }

    bool fill(std::size_t missing) {
        make_room();
        iovec piece{held_.get() + held_end_, std::min(std::max(missing, kAhead), kHeld - held_end_)};
        const std::size_t count = receive_pieces(fd(), &piece, 1);
        held_end_ += count;
        return count > 0;
    }

    void make_room() {
        if (held_ == nullptr) held_.reset(new char[kHeld]);
        if (held_begin_ == 0) return;
        std::memmove(held_.get(), held_.get() + held_begin_, held_end_ - held_begin_);
        held_end_ -= held_begin_;
        held_begin_ = 0;
    }

    // The rest of a payload of which a part is held already. Each byte is copied once at most.
    bool bring_straight(Parts& parts, std::size_t size, std::size_t& came) {
        make_room();
        const std::size_t early = held_end_ - kHeader;  // bytes of the payload
        char tail[kCode + kHeader];                     // the code, and the next frame's header
        iovec pieces[kPieces + 1];
        Parts rest = parts;
        rest.skip(early);
        const std::size_t straight = size - early;
        std::size_t listed = straight;
        const int count = rest.slice(pieces, kPieces, listed);
        if (listed < straight) return fill(straight + kCode);
        pieces[count] = {tail, sizeof tail};
        const std::size_t got = receive_pieces(fd(), pieces, count + 1);
        if (got == 0) return false;
        if (got < straight + kCode) {
            const std::size_t payload = std::min(got, straight);
            rest.copy_out(held_.get() + held_end_, payload);
            std::memcpy(held_.get() + held_end_ + payload, tail, got - payload);
            held_end_ += got;
            return true;
        }
        parts.copy_in(held_.get() + kHeader, early);
        in_.begin();
        in_.add(held_.get(), kHeader + early);
        for (int i = 0; i < count; ++i) in_.add(pieces[i].iov_base, pieces[i].iov_len);
        check(tail);
        parts.skip(size);
        came += size;
        held_end_ = got - straight - kCode;
        std::memcpy(held_.get(), tail + kCode, held_end_);
        return true;
    }

    static constexpr std::size_t kHeld = kFrame + kAhead;

    FrameCodes out_;
    FrameCodes in_;
    Failure failure_;
    std::unique_ptr<char[]> rest_;  // of the last frame
    std::size_t rest_begin_ = 0;
    std::size_t rest_end_ = 0;
    std::unique_ptr<char[]> held_;  // begins with a header, or with what is left of a proved payload
    std::size_t held_begin_ = 0;
    std::size_t held_end_ = 0;
    std::size_t proved_ = 0;
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

TlsFailure take_tls_failure() {
    const unsigned long error = ERR_peek_last_error();
    const unsigned long first = ERR_peek_error();
    TlsFailure failure;
    failure.reason = ERR_GET_REASON(first);
    const char* text = ERR_reason_error_string(first);
    if (text == nullptr) text = ERR_reason_error_string(error);
    failure.text = text == nullptr ? "no reason is known" : text;
    ERR_clear_error();
    return failure;
}

FrameCodes::FrameCodes(const unsigned char* key, bool sends) : context_(EVP_CIPHER_CTX_new()), sends_(sends) {
    if (context_ == nullptr || EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key, nullptr, sends) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not provide AES-128-GCM");
}

void FrameCodes::begin() {
    unsigned char nonce[12] = {};
    for (std::size_t i = 0; i < 8; ++i) nonce[11 - i] = static_cast<unsigned char>(number_ >> (8 * i));
    ++number_;
    if (EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce, sends_) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not take a nonce");
}

void FrameCodes::add(const void* bytes, std::size_t size) {
    int ignored = 0;
    if (EVP_CipherUpdate(context_.get(), nullptr, &ignored, static_cast<const unsigned char*>(bytes),
                         static_cast<int>(size)) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not authenticate");
}

void FrameCodes::end(unsigned char* code) {
    unsigned char nothing[16];
    int ignored = 0;
    if (EVP_CipherFinal_ex(context_.get(), nothing, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kSize, code) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not authenticate");
}

bool FrameCodes::matches(const unsigned char* code) {
    unsigned char expected[kSize];
    std::memcpy(expected, code, kSize);
    unsigned char nothing[16];
    int ignored = 0;
    return EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kSize, expected) == 1 &&
           EVP_CipherFinal_ex(context_.get(), nothing, &ignored) == 1;
}

std::unique_ptr<Channel> make_tls_channel(Descriptor fd, Tls tls) {
    return std::make_unique<TlsChannel>(std::move(fd), std::move(tls));
}

std::unique_ptr<Channel> make_auth_channel(Descriptor fd, FrameCodes out, FrameCodes in) {
    return std::make_unique<AuthChannel>(std::move(fd), std::move(out), std::move(in));
}

std::unique_ptr<Channel> make_plain_channel(Descriptor fd) {
    return std::make_unique<PlainChannel>(std::move(fd));
}

}  // namespace libddp::wire
