#include "wire/pipe.h"

#include <sys/socket.h>

#include <cerrno>
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

}  // namespace

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

int Pipe::read(char* to, int size) {
    const auto wanted = static_cast<std::size_t>(size);
    if (received_ + wanted > kHandshakeBytes) {
        stop_ = Stop::kTooMuch;
        return -1;
    }
    ssize_t count = 0;
    do count = recv(fd_, to, wanted, MSG_DONTWAIT);
    while (count < 0 && errno == EINTR);
    if (count == 0) {
        stop_ = Stop::kEnded;
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        stop_ = Stop::kNothingYet;
    } else if (count < 0) {
        // A peer that closes with unread bytes resets the connection: that is its end too.
        stop_ = errno == ECONNRESET ? Stop::kEnded : Stop::kBroken;
        error_ = errno;
    } else if (received_ == 0 && *to != kHandshakeRecord && *to != kAlertRecord) {
        stop_ = Stop::kForeign;
    } else {
        received_ += static_cast<std::size_t>(count);
        return static_cast<int>(count);
    }
    return -1;
}

int Pipe::write(const char* from, int size) {
    try {
        out_.append(from, static_cast<std::size_t>(size));
    } catch (const std::bad_alloc&) {
        stop_ = Stop::kNoMemory;
        return -1;
    }
    return size;
}

bool Pipe::flush() {
    while (!out_.empty()) {
        const ssize_t sent = send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            out_.erase(0, static_cast<std::size_t>(sent));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            fail(DDP_ERROR_UNAVAILABLE, "the other end closed the connection during the handshake");
        } else if (errno != EINTR) {
            fail(DDP_ERROR_UNAVAILABLE, "the connection broke: ", std::generic_category().message(errno));
        }
    }
    return true;
}

}  // namespace libddp::wire
