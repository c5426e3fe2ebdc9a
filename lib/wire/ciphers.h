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

// Frames follow the handshake, and docs/security.md describes them. This is one direction. A frame:
// u32 length of the content, little endian | content, encrypted | code of both.
class Frames {
public:
    static constexpr std::size_t kHeader = 4;
    static constexpr std::size_t kTail = Gcm::kCodeSize;
    static constexpr std::size_t kLongest = std::size_t{64} << 10;  // content
    // Bytes of the frames of so much content.
    static constexpr std::size_t whole(std::size_t content) {
        return content + (content + kLongest - 1) / kLongest * (kHeader + kTail);
    }

    // After so many frames a key is replaced: the content of 2^24 of the longest records of TLS, of
    // which RFC 8446, 5.5 allows 2^24.5.
    static constexpr std::uint64_t kFramesOfAKey = std::uint64_t{1} << 22;

    using Secret = SecretBytes<32>;

    // secret: what the handshake exports for this direction of this connection alone.
    Frames(const Secret& secret, bool sends, std::uint64_t frames_of_a_key = kFramesOfAKey);

    // Writes whole(size) bytes: a frame of the first bytes of `content`, from 1 to kLongest.
    void seal(const Parts& content, std::size_t size, unsigned char* to);
    // How long the content of a frame is; nullopt: this is the header of none.
    static std::optional<std::size_t> content_size(const unsigned char* header);
    // Writes the content of a frame, which comes as a whole, to `pieces`, which are as long as it
    // together: either one piece, where it is, or memory apart from it. False: bytes were changed
    // on the way, and what was written is worth nothing.
    bool open(const unsigned char* frame, const iovec* pieces, int count);

private:
    // HKDF-Expand-SHA-256 of the secret.
    void expand(const char* label, unsigned char* to, std::size_t size) const;
    void set_key();
    void replace_key();
    void begin(const unsigned char* header);

    Secret secret_;
    Gcm gcm_;
    SecretBytes<std::tuple_size_v<Gcm::Nonce>> mask_;
    std::uint64_t number_ = 0;  // of the next frame with this key
    std::uint64_t most_;        // frames of a key
};

}  // namespace libddp::wire
