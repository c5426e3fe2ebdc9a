// The channels behind a handshake, one for each protection.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <memory>

#include "wire/channel.h"
#include "wire/crypto.h"
#include "wire/pipe.h"

namespace libddp::wire {

// Frees an object of OpenSSL's, unless OpenSSL has ended.
template <auto Free>
struct Freed {
    template <class Object>
    void operator()(Object* object) const {
        if (const Cryptography inside; inside)
            Free(object);
        else
            leave_behind(object);
    }
};
using Ssl = std::unique_ptr<SSL, Freed<SSL_free>>;
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, Freed<EVP_CIPHER_CTX_free>>;

// A TLS connection and the pipe under it.
struct Tls {
    std::unique_ptr<Pipe> pipe;
    Ssl ssl;  // goes first
};

// What OpenSSL says about its last failure, and forgets then. Inside Cryptography.
struct TlsFailure {
    int reason = 0;    // SSL_R_...
    std::string text;  // "bad record type"
};
TlsFailure take_tls_failure();

// The message authentication codes of one direction: AES-128-GCM that encrypts nothing, so GMAC. Every frame has a nonce of its own, its
// number.
class FrameCodes {
public:
    static constexpr std::size_t kKeySize = 16;
    static constexpr std::size_t kSize = 16;

    explicit FrameCodes(const unsigned char* key, bool sends);
    void begin();
    void add(const void* bytes, std::size_t size);
    void end(unsigned char* code);  // writes it
    bool matches(const unsigned char* code);

private:
    CipherContext context_;
    const bool sends_;
    std::uint64_t number_ = 0;
};

// After how many records of a sender its key is replaced: AES-GCM is safe for 2^24.5 full records (RFC 8446, 5.5). Tests lower it; a channel
// looks at it when it is made.
inline std::uint64_t records_of_a_key = std::uint64_t{1} << 22;

std::unique_ptr<Channel> make_tls_channel(Descriptor fd, Tls tls);
std::unique_ptr<Channel> make_auth_channel(Descriptor fd, FrameCodes out, FrameCodes in);
std::unique_ptr<Channel> make_plain_channel(Descriptor fd);

}  // namespace libddp::wire
