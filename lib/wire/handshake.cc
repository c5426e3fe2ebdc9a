#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "util/error.h"
#include "util/mutex.h"
#include "wire/channel.h"
#include "wire/channels.h"
#include "wire/crypto.h"

namespace libddp::wire {
namespace {

// SSL_CTX_set1_groups_list without its cast that drops const, of which clang warns.
bool set_groups(SSL_CTX* context) {
    static char groups[] = "X25519:P-256";
    return SSL_CTX_ctrl(context, SSL_CTRL_SET_GROUPS_LIST, 0, groups) == 1;
}

constexpr std::size_t kLongestIdentity = 128;
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

// The TLS handshake alone proves the client's key to the server before the client knows that. Each
// end sends one byte more, and is done when it has the other's.
constexpr char kWelcome = 'w';
constexpr char kReady = 'r';

// The name that the handshake authenticates beside the identity (ALPN): both ends are libddp and
// use the same protection.
std::string_view application(Protection protection) {
    static constexpr std::string_view kNames[] = {"libddp encrypted 1", "libddp plain 1"};
    return kNames[static_cast<int>(protection)];
}

const char* words(Protection protection) {
    static constexpr const char* kWords[] = {"encrypted", "plain"};
    return kWords[static_cast<int>(protection)];
}

// The text of OpenSSL's last failure, which OpenSSL then forgets. Inside Cryptography.
struct TlsFailure {
    int reason = 0;    // SSL_R_...
    std::string text;  // "bad record type"
};

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

[[noreturn]] void no_tls() {
    const TlsFailure failure = take_tls_failure();
    fail(failure.reason == ERR_R_MALLOC_FAILURE ? DDP_ERROR_OUT_OF_MEMORY : DDP_ERROR_INTERNAL,
         "OpenSSL cannot set up TLS 1.3: ", failure.text);
}

// Each end's part of a handshake has a few hundred bytes.
constexpr std::size_t kHandshakeBytes = 8192;
// The first byte of a TLS record: a handshake message or an alert. A stranger's first byte is
// usually another.
constexpr char kHandshakeRecord = 22;
constexpr char kAlertRecord = 21;

// The socket under a handshake, as OpenSSL sees it. It takes few bytes from the peer, none beyond
// what OpenSSL asks for, and only if they look like TLS.
class Pipe {
public:
    // fd: non-blocking; the caller owns it.
    explicit Pipe(int fd) : fd_(fd) {}
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;

    // For SSL_set_bio, which owns it then. The pipe outlives its use. Null: out of memory. Inside
    // Cryptography.
    BIO* make_bio();

    // Passes on to the kernel what OpenSSL has written. True: nothing is left. Throws UNAVAILABLE.
    bool flush();

    // Why OpenSSL got no more bytes. clear() before each call of OpenSSL that reads.
    enum class Stop { kNone, kNothingYet, kEnded, kBroken, kForeign, kTooMuch, kNoMemory };
    Stop stop() const { return stop_; }
    int error() const { return error_; }  // kBroken: the errno value
    void clear() { stop_ = Stop::kNone; }

private:
    static const BIO_METHOD* method();
    int read(char* to, int size);
    int write(const char* from, int size);

    const int fd_;
    std::size_t received_ = 0;
    Stop stop_ = Stop::kNone;
    int error_ = 0;
    std::string out_;
};

const BIO_METHOD* Pipe::method() {
    static Mutex mutex;  // see TlsHandshake::context()
    static BIO_METHOD* made DDP_GUARDED_BY(mutex) = nullptr;
    const Lock lock(mutex);
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
            if (command == BIO_CTRL_EOF)
                return static_cast<Pipe*>(BIO_get_data(bio))->stop_ == Stop::kEnded ? 1 : 0;
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
            fail(DDP_ERROR_UNAVAILABLE,
                 "the connection broke: ", std::generic_category().message(errno));
        }
    }
    return true;
}

// The client's hello, as the server knows it before OpenSSL computes anything.
class Hello {
public:
    // seen: null compares with nothing.
    explicit Hello(SeenHellos* seen) : seen_(seen) {}

    // False: somebody has sent it before. A second hello on the same connection has the same
    // number.
    bool is_new(SSL* ssl) {
        const unsigned char* random = nullptr;
        if (seen_ == nullptr || random_ ||
            SSL_client_hello_get0_random(ssl, &random) != sizeof(SeenHellos::Random))
            return true;
        random_.emplace();
        std::copy_n(random, random_->size(), random_->begin());
        replayed_ = seen_->has(*random_);
        return !replayed_;
    }
    // Once the client has used the key: OpenSSL goes no further with a wrong one.
    void note() {
        if (!random_ || noted_) return;
        seen_->add(*random_);
        noted_ = true;
    }
    bool replayed() const { return replayed_; }

private:
    SeenHellos* seen_;
    std::optional<SeenHellos::Random> random_;
    bool replayed_ = false, noted_ = false;
};

class TlsHandshake final : public Handshake {
public:
    TlsHandshake(Descriptor fd, Protection protection)
        : fd_(std::move(fd)), protection_(protection) {
        const Cryptography inside;
        inside.require();
        require_memory();
        ssl_.reset(SSL_new(context()));
        BIO* bio = ssl_ == nullptr ? nullptr : pipe_.make_bio();
        if (bio == nullptr) no_tls();
        SSL_set_bio(ssl_.get(), bio, bio);
        SSL_set_app_data(ssl_.get(), this);
    }

    void become_client(std::string identity, const Key& key) {
        if (identity.size() > kLongestIdentity || identity.find('\0') != std::string::npos)
            fail(DDP_ERROR_INTERNAL, "an identity has at most ", kLongestIdentity,
                 " bytes, and none is NUL");
        identity_ = std::move(identity);
        key_ = key;
        const Cryptography inside;
        inside.require();
        const std::string_view name = application(protection_);
        std::string offer(1, static_cast<char>(name.size()));
        offer += name;
        SSL_set_connect_state(ssl_.get());
        // A server that offers a certificate in place of the key is refused: none is trusted.
        SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
        if (SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(offer.data()),
                                static_cast<unsigned>(offer.size())) != 0)
            no_tls();
    }

    void become_server(Lookup lookup, SeenHellos* seen) {
        server_ = true;
        lookup_ = std::move(lookup);
        hello_ = Hello(seen);
        const Cryptography inside;
        inside.require();
        SSL_set_accept_state(ssl_.get());
        SSL_set_verify(ssl_.get(), SSL_VERIFY_NONE, nullptr);
    }

    Wants advance() override {
        const Cryptography inside;
        inside.require();
        if (refused_) throw Error(*refused_);
        try {
            return go_on();
        } catch (const Error&) {
            refused_ = caught();
            throw;
        }
    }

    int fd() const override { return fd_.get(); }
    const std::string& identity() const override { return identity_; }

    std::unique_ptr<Channel> take_channel() override {
        if (state_ != State::kDone || ssl_ == nullptr)
            fail(DDP_ERROR_INTERNAL, "a channel was taken before the handshake was over");
        if (protection_ == Protection::kEncrypted) return take_encrypted_channel();
        ssl_.reset();
        return make_plain_channel(std::move(fd_));
    }

private:
    enum class State { kTls, kOtherByte, kOwnByte, kDone };

    static SSL_CTX* context();
    static SSL_CTX* make_context();
    static TlsHandshake* self(const SSL* ssl) {
        return static_cast<TlsHandshake*>(SSL_get_app_data(ssl));
    }

    // A session that stands for the key; the caller owns it. Null: out of memory.
    static SSL_SESSION* session_of(SSL* ssl, const Key& key) {
        SSL_SESSION* session = SSL_SESSION_new();
        if (session == nullptr) return nullptr;
        const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher);
        if (cipher != nullptr &&
            SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
            SSL_SESSION_set_cipher(session, cipher) == 1 &&
            SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
            return session;
        SSL_SESSION_free(session);
        return nullptr;
    }

    static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity,
                           std::size_t* size, SSL_SESSION** session) {
        TlsHandshake* at = self(ssl);
        *session = session_of(ssl, at->key_);
        *identity = reinterpret_cast<const unsigned char*>(at->identity_.data());
        *size = at->identity_.size();
        return *session != nullptr ? 1 : 0;
    }

    static int find_session(SSL* ssl, const unsigned char* identity, std::size_t size,
                            SSL_SESSION** session) {
        TlsHandshake* at = self(ssl);
        *session = nullptr;
        try {
            const std::string_view name(reinterpret_cast<const char*>(identity), size);
            if (size > kLongestIdentity || name.find('\0') != name.npos) return 1;
            // Once for each of two hellos: a lookup may cost more than a stranger's bytes.
            if (at->lookups_ == 2 || (at->lookups_ == 1 && name != at->identity_)) return 1;
            ++at->lookups_;
            at->identity_ = name;
            std::optional<Key> key = at->lookup_(at->identity_);
            // OpenSSL goes on without a key, and finds that it has no certificate either
            if (!key) return 1;
            at->known_ = true;
            *session = session_of(ssl, *key);
            return *session != nullptr ? 1 : 0;
        } catch (...) {
            at->thrown_ = std::current_exception();
            return 0;
        }
    }

    // Before OpenSSL computes anything.
    static int look_at_hello(SSL* ssl, int*, void*) {
        return self(ssl)->hello_.is_new(ssl) ? SSL_CLIENT_HELLO_SUCCESS : SSL_CLIENT_HELLO_ERROR;
    }

    static int select_application(SSL* ssl, const unsigned char** chosen,
                                  unsigned char* chosen_size, const unsigned char* offered,
                                  unsigned size, void*) {
        TlsHandshake* at = self(ssl);
        // OpenSSL has proved the client's key, and has not yet computed anything that costs.
        if (at->known_) at->hello_.note();
        const std::string_view mine = application(at->protection_);
        for (unsigned from = 0; from < size; from += 1U + offered[from]) {
            const std::string_view name(reinterpret_cast<const char*>(offered) + from + 1,
                                        offered[from]);
            for (Protection other : {Protection::kEncrypted, Protection::kPlain})
                if (name == application(other)) at->offered_ = other;
            if (name != mine) continue;
            *chosen = offered + from + 1;
            *chosen_size = offered[from];
            return SSL_TLSEXT_ERR_OK;
        }
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }

    Wants go_on() {
        while (true) {
            if (!pipe_.flush()) return Wants::kWrite;
            bool done = false;
            switch (state_) {
                case State::kTls:
                    done = shake_hands();
                    break;
                case State::kOtherByte:
                    done = read_byte(server_ ? kReady : kWelcome);
                    break;
                case State::kOwnByte:
                    write_byte(server_ ? kWelcome : kReady);
                    done = true;
                    break;
                case State::kDone:
                    return Wants::kNothing;
            }
            if (done) {
                // The server's byte comes first.
                if (state_ == State::kTls)
                    state_ = server_ ? State::kOwnByte : State::kOtherByte;
                else if (state_ == State::kOwnByte)
                    state_ = server_ ? State::kOtherByte : State::kDone;
                else
                    state_ = server_ ? State::kDone : State::kOwnByte;
            } else if (pipe_.flush()) {
                return Wants::kRead;
            }
        }
    }

    // These three: false if the peer has to send something first.
    bool shake_hands() {
        pipe_.clear();
        if (const int status = SSL_do_handshake(ssl_.get()); status != 1) {
            if (pipe_.stop() != Pipe::Stop::kNothingYet) failed();
            return false;
        }
        const unsigned char* chosen = nullptr;
        unsigned size = 0;
        SSL_get0_alpn_selected(ssl_.get(), &chosen, &size);
        const std::string_view name(reinterpret_cast<const char*>(chosen), size);
        // Otherwise the peer has proved nothing.
        if (SSL_session_reused(ssl_.get()) != 1 ||
            SSL_get0_peer_certificate(ssl_.get()) != nullptr || name != application(protection_))
            fail(DDP_ERROR_PERMISSION_DENIED, "the other end did not prove that it knows the key");
        return true;
    }

    bool read_byte(char expected) {
        pipe_.clear();
        char byte = 0;
        std::size_t count = 0;
        if (SSL_read_ex(ssl_.get(), &byte, 1, &count) != 1) {
            if (pipe_.stop() == Pipe::Stop::kNothingYet) return false;
            failed();
        }
        if (byte != expected || SSL_pending(ssl_.get()) != 0)
            throw NotLibddp(DDP_ERROR_UNAVAILABLE, "the other end is not libddp");
        return true;
    }

    void write_byte(char byte) {
        std::size_t count = 0;
        if (SSL_write_ex(ssl_.get(), &byte, 1, &count) != 1) failed();
    }

    [[noreturn]] void failed();

    std::unique_ptr<Channel> take_encrypted_channel() {
        const Cryptography inside;
        inside.require();
        Frames from_client = exported("EXPERIMENTAL libddp from the client", !server_);
        Frames from_server = exported("EXPERIMENTAL libddp from the server", server_);
        ssl_.reset();
        return server_ ? make_encrypted_channel(std::move(fd_), std::move(from_server),
                                                std::move(from_client))
                       : make_encrypted_channel(std::move(fd_), std::move(from_client),
                                                std::move(from_server));
    }
    // RFC 8446, 7.5. The secret depends on the handshake up to the server's end of it: both hellos,
    // the key, the identity and the name of the application.
    Frames exported(std::string_view label, bool sends) {
        Frames::Secret secret;
        if (SSL_export_keying_material(ssl_.get(), secret.data(), secret.size(), label.data(),
                                       label.size(), nullptr, 0, 0) != 1)
            no_tls();
        return {secret, sends};
    }

    Descriptor fd_;
    const Protection protection_;
    bool server_ = false;
    std::string identity_;
    Key key_{};  // the client's
    Lookup lookup_;
    State state_ = State::kTls;
    Pipe pipe_{fd_.get()};
    std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
    std::optional<ErrorInfo> refused_;

    // Set by the callbacks of a server.
    bool known_ = false;  // there is a key for the client's identity
    int lookups_ = 0;
    std::optional<Protection> offered_;
    Hello hello_{nullptr};
    std::exception_ptr thrown_;
};

// One for all connections; never freed.
SSL_CTX* TlsHandshake::context() {
    // Not made as a static object: ThreadSanitizer does not see the guard of one in programs that
    // are written in C.
    static Mutex mutex;
    static SSL_CTX* made DDP_GUARDED_BY(mutex) = nullptr;
    const Lock lock(mutex);
    if (made == nullptr) made = make_context();
    if (made == nullptr) no_tls();
    return made;
}

SSL_CTX* TlsHandshake::make_context() {
    SSL_CTX* context = SSL_CTX_new(TLS_method());
    if (context == nullptr) return nullptr;
    // Whatever the system's configuration says.
    SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT |
                                       SSL_OP_ALLOW_UNSAFE_LEGACY_RENEGOTIATION |
                                       SSL_OP_ENABLE_KTLS);
    SSL_CTX_set_options(context,
                        SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_mode(context, SSL_MODE_SEND_FALLBACK_SCSV | SSL_MODE_ASYNC);
    SSL_CTX_set_mode(context, SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(context, 0);  // nothing beyond the handshake belongs to OpenSSL
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    SSL_CTX_set_psk_find_session_callback(context, find_session);
    SSL_CTX_set_client_hello_cb(context, look_at_hello, nullptr);
    SSL_CTX_set_alpn_select_cb(context, select_application, nullptr);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 && set_groups(context) &&
        SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1)
        return context;
    SSL_CTX_free(context);
    return nullptr;
}

void TlsHandshake::failed() {
    const TlsFailure failure = take_tls_failure();
    switch (pipe_.stop()) {
        case Pipe::Stop::kEnded:
            fail(DDP_ERROR_UNAVAILABLE, "the other end closed the connection during the handshake");
        case Pipe::Stop::kBroken:
            fail(DDP_ERROR_UNAVAILABLE, "the connection broke during the handshake: ",
                 std::generic_category().message(pipe_.error()));
        case Pipe::Stop::kForeign:
            throw NotLibddp(DDP_ERROR_UNAVAILABLE, "the other end is not libddp");
        case Pipe::Stop::kTooMuch:
            throw NotLibddp(DDP_ERROR_UNAVAILABLE,
                            "the other end is not libddp: it sends more than a handshake has");
        case Pipe::Stop::kNoMemory:
            fail(DDP_ERROR_OUT_OF_MEMORY, "out of memory");
        case Pipe::Stop::kNone:
        case Pipe::Stop::kNothingYet:
            break;
    }
    // Without an answer: it would cost more, and a rank whose hello somebody else has sent before
    // tries again.
    if (hello_.replayed()) fail(DDP_ERROR_UNAVAILABLE, "it sent a recorded handshake once more");
    // OpenSSL has put an alert for the peer into the pipe. If the kernel does not take it now, the
    // peer does without.
    try {
        pipe_.flush();
    } catch (const Error&) {
    }
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    if (server_ && offered_ && *offered_ != protection_)
        fail(DDP_ERROR_PERMISSION_DENIED, "the client wants a connection that is ",
             words(*offered_), ", and the server one that is ", words(protection_));
    if (server_ && !identity_.empty() && !known_)
        fail(DDP_ERROR_PERMISSION_DENIED, "the client wants '", identity_,
             "', for which the server has no key");
    switch (failure.reason) {
        case ERR_R_MALLOC_FAILURE:
            fail(DDP_ERROR_OUT_OF_MEMORY, "out of memory");
        case SSL_R_BINDER_DOES_NOT_VERIFY:
        case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:  // what OpenSSL's server says then
            fail(DDP_ERROR_PERMISSION_DENIED, "the other end has another key",
                 server_ ? ". Does it have the same job secret?" : "");
        case SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL:
            fail(DDP_ERROR_PERMISSION_DENIED, "the server does not offer a connection that is ",
                 words(protection_));
        case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
            fail(DDP_ERROR_PERMISSION_DENIED, "the server has no key for '", identity_, "'");
        case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
        case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
        case SSL_R_DIGEST_CHECK_FAILED:
        case SSL_R_CERTIFICATE_VERIFY_FAILED:
            fail(DDP_ERROR_PERMISSION_DENIED,
                 "the other end does not know the key, or bytes were changed on the way (",
                 failure.text, ")");
        default:
            throw NotLibddp(DDP_ERROR_UNAVAILABLE,
                            str("the other end is not libddp, or bytes were changed on the way (",
                                failure.text, ")"));
    }
}

}  // namespace

std::unique_ptr<Handshake> Handshake::client(Descriptor fd, std::string identity, const Key& key,
                                             Protection protection) {
    auto handshake = std::make_unique<TlsHandshake>(std::move(fd), protection);
    handshake->become_client(std::move(identity), key);
    return handshake;
}

std::unique_ptr<Handshake> Handshake::server(Descriptor fd, Lookup lookup, Protection protection,
                                             SeenHellos* seen) {
    auto handshake = std::make_unique<TlsHandshake>(std::move(fd), protection);
    handshake->become_server(std::move(lookup), seen);
    return handshake;
}

}  // namespace libddp::wire
