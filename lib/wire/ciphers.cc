#include "wire/ciphers.h"

#include <openssl/err.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "util/error.h"

namespace libddp::wire {

Gcm::Gcm(bool sends) : context_(EVP_CIPHER_CTX_new()), sends_(sends) {
    if (context_ == nullptr) throw std::bad_alloc();
}

void Gcm::set_key(const unsigned char* key) {
    if (EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key, nullptr, sends_) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not provide AES-128-GCM");
}

void Gcm::begin(const Nonce& nonce) {
    if (EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), sends_) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not take a nonce");
}

void Gcm::authenticate(const void* bytes, std::size_t size) {
    int ignored = 0;
    if (EVP_CipherUpdate(context_.get(), nullptr, &ignored,
                         static_cast<const unsigned char*>(bytes), static_cast<int>(size)) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not authenticate");
}

void Gcm::crypt(const void* from, std::size_t size, void* to) {
    int ignored = 0;
    if (EVP_CipherUpdate(context_.get(), static_cast<unsigned char*>(to), &ignored,
                         static_cast<const unsigned char*>(from), static_cast<int>(size)) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not ", sends_ ? "encrypt" : "decrypt");
}

void Gcm::end(unsigned char* code) {
    unsigned char nothing[16];
    int ignored = 0;
    if (EVP_CipherFinal_ex(context_.get(), nothing, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kCodeSize, code) != 1)
        fail(DDP_ERROR_INTERNAL, "OpenSSL does not authenticate");
}

bool Gcm::matches(const unsigned char* code) {
    unsigned char expected[kCodeSize];
    std::memcpy(expected, code, kCodeSize);
    unsigned char nothing[16];
    int ignored = 0;
    const bool same =
        EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kCodeSize, expected) == 1 &&
        EVP_CipherFinal_ex(context_.get(), nothing, &ignored) == 1;
    if (!same) ERR_clear_error();
    return same;
}

Frames::Frames(const Secret& secret, bool sends, std::uint64_t frames_of_a_key)
    : secret_(secret), gcm_(sends), most_(frames_of_a_key) {
    set_key();
}

void Frames::expand(const char* label, unsigned char* to, std::size_t size) const {
    hkdf({reinterpret_cast<const char*>(secret_.data()), secret_.size()}, nullptr, label, to, size);
}

void Frames::set_key() {
    require_memory();
    SecretBytes<Gcm::kKeySize> key;
    expand("libddp frame key", key.data(), key.size());
    gcm_.set_key(key.data());
    expand("libddp frame mask", mask_.data(), mask_.size());
}

// Nothing has changed if this fails: two frames with one nonce would give away what is in them.
void Frames::replace_key() {
    Secret next;
    expand("libddp next secret", next.data(), next.size());
    *this = Frames(next, gcm_.sends(), most_);
}

void Frames::begin(const unsigned char* header) {
    if (number_ == most_) replace_key();
    Gcm::Nonce nonce;
    std::copy(mask_.begin(), mask_.end(), nonce.begin());
    for (std::size_t i = 0; i < 8; ++i)
        nonce[11 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
    ++number_;
    gcm_.begin(nonce);
    gcm_.authenticate(header, kHeader);
}

void Frames::seal(const Parts& content, std::size_t size, unsigned char* to) {
    unsigned char* const header = to;
    for (std::size_t i = 0; i < kHeader; ++i) *to++ = static_cast<unsigned char>(size >> (8 * i));
    begin(header);
    content.each(size, [&](const iovec& piece) {
        gcm_.crypt(piece.iov_base, piece.iov_len, to);
        to += piece.iov_len;
    });
    gcm_.end(to);
}

std::optional<std::size_t> Frames::content_size(const unsigned char* header) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < kHeader; ++i)
        size |= static_cast<std::size_t>(header[i]) << (8 * i);
    if (size == 0 || size > kLongest) return std::nullopt;
    return size;
}

bool Frames::open(const unsigned char* frame, const iovec* pieces, int count) {
    begin(frame);
    const unsigned char* from = frame + kHeader;
    for (int i = 0; i < count; ++i) {
        gcm_.crypt(from, pieces[i].iov_len, pieces[i].iov_base);
        from += pieces[i].iov_len;
    }
    return gcm_.matches(from);
}

}  // namespace libddp::wire
