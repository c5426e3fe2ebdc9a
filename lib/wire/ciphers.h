// Protection of the bytes of a channel in one direction. Inside Cryptography.
#pragma once

#include <openssl/evp.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "wire/crypto.h"
#include "wire/parts.h"

namespace libddp::wire {

// AES-128-GCM of one direction. A message: begin(), authenticate() what is not encrypted, crypt()
// the rest, then end() or matches().
class Gcm {
public:
    static constexpr std::size_t kKeySize = 16;
    static constexpr std::size_t kCodeSize = 16;
    using Nonce = std::array<unsigned char, 12>;

    explicit Gcm(bool sends);
    bool sends() const { return sends_; }
    void set_key(const unsigned char* key);
    void begin(const Nonce& nonce);  // another one for each message
    void authenticate(const void* bytes, std::size_t size);
    // to: `from`, or memory apart from it
    void crypt(const void* from, std::size_t size, void* to);
    void end(unsigned char* code);  // writes it
    bool matches(const unsigned char* code);

private:
    std::unique_ptr<EVP_CIPHER_CTX, Freed<EVP_CIPHER_CTX_free>> context_;
    bool sends_;
};

// The message authentication codes of frames that are not encrypted. Every frame has a nonce of its
// own, its number.
class FrameCodes {
public:
    static constexpr std::size_t kKeySize = Gcm::kKeySize;
    static constexpr std::size_t kSize = Gcm::kCodeSize;

    FrameCodes(const unsigned char* key, bool sends) : gcm_(sends) { gcm_.set_key(key); }
    void begin();
    void add(const void* bytes, std::size_t size) { gcm_.authenticate(bytes, size); }
    void end(unsigned char* code) { gcm_.end(code); }
    bool matches(const unsigned char* code) { return gcm_.matches(code); }

private:
    Gcm gcm_;
    std::uint64_t number_ = 0;
};

// TLS 1.3 records of the suite TLS_AES_128_GCM_SHA256 (RFC 8446, 5.2 and 7.3). A record: header |
// content, encrypted | tail.
class Records {
public:
    static constexpr std::size_t kHeader = 5;
    // the kind of content, encrypted, and the code
    static constexpr std::size_t kTail = 1 + Gcm::kCodeSize;
    static constexpr std::size_t kLongest = std::size_t{1} << 14;  // content
    // Bytes of the records of so much content.
    static constexpr std::size_t whole(std::size_t content) {
        return content +
               std::max<std::size_t>(1, (content + kLongest - 1) / kLongest) * (kHeader + kTail);
    }

    enum class Content : unsigned char { kAlert = 21, kHandshake = 22, kData = 23 };
    using Secret = std::array<unsigned char, 32>;

    // secret: a traffic secret of the handshake. number: how many records the handshake has sent
    // with it.
    Records(const Secret& secret, bool sends, std::uint64_t number);
    ~Records();
    Records(Records&&) = default;
    Records& operator=(Records&&) = default;

    // Carries out a key update, in the end that has sent or received one.
    void replace_key();

    // Writes whole(size) bytes: a record of the first bytes of `content`.
    void seal(Content kind, const Parts& content, std::size_t size, unsigned char* to);
    // How long the content of a record is; nullopt: this is the header of none.
    static std::optional<std::size_t> content_size(const unsigned char* header);
    // Writes the content of a record, which comes as a whole, to `pieces`, which are as long as it
    // together: either one piece, where it is, or memory apart from it. Returns what it is, by the
    // last byte; nullopt: bytes were changed on the way. libddp pads no records: the kind of a
    // padded one is 0.
    std::optional<Content> open(const unsigned char* record, std::size_t size, const iovec* pieces,
                                int count);

private:
    // HKDF-Expand-Label (RFC 8446, 7.1) of the secret, without a context.
    void expand(const char* label, unsigned char* to, std::size_t size) const;
    void set_key();
    void begin(const unsigned char* header);

    Secret secret_;
    Gcm gcm_;
    Gcm::Nonce mask_{};
    std::uint64_t number_;
};

}  // namespace libddp::wire
