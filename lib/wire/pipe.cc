#include "wire/pipe.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>

#include "util/error.h"
#include "wire/crypto.h"

namespace libddp::wire {
namespace {

// Each end's part of a handshake has a few hundred bytes.
constexpr std::size_t kHandshakeBytes = 8192;
// The first byte of a TLS record: a handshake message or an alert. A stranger's first byte is usually another.
constexpr char kHandshakeRecord = 22;
constexpr char kAlertRecord = 21;

// Alerts and key updates fit beside the records of one call.
constexpr std::size_t kReserve = 1024;

}  // namespace

void Pipe::Buffer::resize(std::size_t new_size) {
    std::unique_ptr<char[]> fresh(new char[new_size]);
    if (!empty()) std::memcpy(fresh.get(), bytes.get() + begin, end - begin);
    end -= begin;
    begin = 0;
    bytes = std::move(fresh);
    size = new_size;
}

const BIO_METHOD* Pipe::method() {
    static std::mutex mutex;  // see TlsHandshake::context()
    static BIO_METHOD* made = nullptr;
    const std::lock_guard lock(mutex);
    if (made != nullptr) return made;
    made = [] {
        BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "libddp");
        if (method == nullptr) return method;
        BIO_meth_set_read(method, [](BIO* bio, char* to, int size) {
            BIO_clear_retry_flags(bio);
            auto* self = static_cast<Pipe*>(BIO_get_data(bio));
            const int count = self->read(to, size);
            if (count < 0 && self->stop_ == Stop::kNothingYet) BIO_set_retry_read(bio);
            return count;
        });
        BIO_meth_set_write(method, [](BIO* bio, const char* from, int size) {
            BIO_clear_retry_flags(bio);
            return static_cast<Pipe*>(BIO_get_data(bio))->write(from, size);
        });
        BIO_meth_set_ctrl(method, [](BIO* bio, int command, long, void*) -> long {
            if (command == BIO_CTRL_FLUSH) return 1;  // Pipe::flush does it
            if (command == BIO_CTRL_EOF) return static_cast<Pipe*>(BIO_get_data(bio))->stop_ == Stop::kEnded ? 1 : 0;
            return 0;
        });
        return method;
    }();
    return made;
}

BIO* Pipe::make_bio() {
    const BIO_METHOD* how = method();
    BIO* bio = how == nullptr ? nullptr : BIO_new(how);
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    return bio;
}

// How many bytes came; 0 or less: stop_ says why none.
long Pipe::receive(char* to, std::size_t size) {
    while (true) {
        const ssize_t count = recv(fd_, to, size, MSG_DONTWAIT);
        if (count > 0) return count;
        if (count < 0 && errno == EINTR) continue;
        if (count == 0) {
            stop_ = Stop::kEnded;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            stop_ = Stop::kNothingYet;
        } else {
            // A peer that closes with unread bytes resets the connection: that is its end too.
            stop_ = errno == ECONNRESET ? Stop::kEnded : Stop::kBroken;
            error_ = errno;
        }
        return -1;
    }
}

// One call of the kernel brings many records. The buffer grows while it is filled, and an idle connection has none.
bool Pipe::fill() {
    if (in_.bytes == nullptr) {
        try {
            in_.resize(next_size_);
        } catch (const std::bad_alloc&) {
            stop_ = Stop::kNoMemory;
            return false;
        }
    }
    const long count = receive(in_.bytes.get(), in_.size);
    if (count <= 0) {
        if (brought_ < in_.size / 4 || in_.size <= kSmall) {
            next_size_ = std::max(in_.size / 4, kSmall);
            in_.drop();
        }
        brought_ = 0;
        return false;
    }
    in_.begin = 0;
    in_.end = static_cast<std::size_t>(count);
    brought_ += in_.end;
    return true;
}

int Pipe::read(char* to, int size) {
    const auto wanted = static_cast<std::size_t>(size);
    if (handshake_) {
        if (received_ + wanted > kHandshakeBytes) {
            stop_ = Stop::kTooMuch;
            return -1;
        }
        const long count = receive(to, wanted);
        if (count <= 0) return static_cast<int>(count);
        if (received_ == 0 && *to != kHandshakeRecord && *to != kAlertRecord) {
            stop_ = Stop::kForeign;
            return -1;
        }
        received_ += static_cast<std::size_t>(count);
        return static_cast<int>(count);
    }
    if (in_.empty()) {
        if (in_.bytes != nullptr && in_.end == in_.size && in_.size < kLarge) {
            next_size_ = std::min(in_.size * 4, kLarge);
            in_.drop();
        }
        if (!fill()) return -1;
    }
    const std::size_t count = std::min(wanted, in_.end - in_.begin);
    std::memcpy(to, in_.bytes.get() + in_.begin, count);
    in_.begin += count;
    return static_cast<int>(count);
}

int Pipe::write(const char* from, int size) {
    const auto count = static_cast<std::size_t>(size);
    // make_room() has made room for what libddp writes. What OpenSSL writes by itself is small.
    if (out_.size - out_.end < count) {
        try {
            out_.resize(out_.end - out_.begin + count + kReserve);
        } catch (const std::bad_alloc&) {
            stop_ = Stop::kNoMemory;
            return -1;
        }
    }
    std::memcpy(out_.bytes.get() + out_.end, from, count);
    out_.end += count;
    return size;
}

bool Pipe::make_room(std::size_t bytes, std::size_t more) {
    const std::size_t wanted = std::clamp(bytes + more, bytes, std::max(bytes, kLarge)) + kReserve;
    if (out_.empty() && (out_.size < std::min(wanted, kLarge) || out_.size / 4 > wanted)) out_.drop();
    if (out_.bytes == nullptr) out_.resize(wanted);
    if (out_.size - out_.end >= bytes) return true;
    if (flush()) return make_room(bytes, more);
    const std::size_t held = out_.end - out_.begin;
    if (held + bytes > kLarge) return false;
    if (out_.size < held + bytes || out_.begin < held) {
        out_.resize(std::max(out_.size, held + bytes + kReserve));
    } else {
        std::memcpy(out_.bytes.get(), out_.bytes.get() + out_.begin, held);
        out_.begin = 0;
        out_.end = held;
    }
    return true;
}

bool Pipe::flush() {
    while (!out_.empty()) {
        const ssize_t sent =
            send(fd_, out_.bytes.get() + out_.begin, out_.end - out_.begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            out_.begin += static_cast<std::size_t>(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            fail(DDP_ERROR_UNAVAILABLE,
                 handshake_ ? "the other end closed the connection during the handshake" : "the connection ended");
        } else if (errno != EINTR) {
            fail(DDP_ERROR_UNAVAILABLE, "the connection broke: ", std::generic_category().message(errno));
        }
    }
    out_.begin = out_.end = 0;
    if (out_.size <= kSmall + kReserve) out_.drop();
    return true;
}

}  // namespace libddp::wire
