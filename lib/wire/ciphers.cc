#include "wire/ciphers.h"

#include <openssl/err.h>
#include <string.h>

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

namespace {

// The first bytes of every record after the handshake: data, TLS 1.2.
constexpr unsigned char kOuter[] = {23, 3, 3};

// The last bytes of a nonce, big endian.
void add_number(Gcm::Nonce& nonce, std::uint64_t number) {
    for (std::size_t i = 0; i < 8; ++i)
        nonce[11 - i] ^= static_cast<unsigned char>(number >> (8 * i));
}

}  // namespace

void FrameCodes::begin() {
    Gcm::Nonce nonce{};
    add_number(nonce, number_++);
    gcm_.begin(nonce);
}

Records::Records(const Secret& secret, bool sends, std::uint64_t number)
    : secret_(secret), gcm_(sends), number_(number) {
    set_key();
}

Records::~Records() {
    explicit_bzero(secret_.data(), secret_.size());
}

void Records::expand(const char* label, unsigned char* to, std::size_t size) const {
    const std::string name = std::string("tls13 ") + label;
    const std::string info = std::string(1, '\0') + static_cast<char>(size) +
                             static_cast<char>(name.size()) + name + '\0';
    hkdf({reinterpret_cast<const char*>(secret_.data()), secret_.size()}, nullptr, info, to, size);
}

void Records::set_key() {
    require_memory();
    unsigned char key[Gcm::kKeySize];
    expand("key", key, sizeof key);
    gcm_.set_key(key);
    explicit_bzero(key, sizeof key);
    expand("iv", mask_.data(), mask_.size());
}

void Records::replace_key() {
    Secret next;
    expand("traffic upd", next.data(), next.size());
    // Nothing has changed if this fails: two records with one nonce would give away what is in
    // them.
    Records fresh(next, gcm_.sends(), 0);
    explicit_bzero(next.data(), next.size());
    *this = std::move(fresh);
}

void Records::begin(const unsigned char* header) {
    Gcm::Nonce nonce = mask_;
    add_number(nonce, number_++);
    gcm_.begin(nonce);
    gcm_.authenticate(header, kHeader);
}

void Records::seal(Content kind, const Parts& content, std::size_t size, unsigned char* to) {
    const std::size_t length = size + kTail;
    const unsigned char header[kHeader] = {kOuter[0], kOuter[1], kOuter[2],
                                           static_cast<unsigned char>(length >> 8),
                                           static_cast<unsigned char>(length)};
    std::memcpy(to, header, kHeader);
    begin(header);
    to += kHeader;
    content.each(size, [&](const iovec& piece) {
        gcm_.crypt(piece.iov_base, piece.iov_len, to);
        to += piece.iov_len;
    });
    const auto what = static_cast<unsigned char>(kind);
    gcm_.crypt(&what, 1, to);
    gcm_.end(to + 1);
}

std::optional<std::size_t> Records::content_size(const unsigned char* header) {
    const std::size_t length = static_cast<std::size_t>(header[3]) << 8 | header[4];
    if (std::memcmp(header, kOuter, sizeof kOuter) != 0 || length < kTail ||
        length > kLongest + kTail)
        return std::nullopt;
    return length - kTail;
}

std::optional<Records::Content> Records::open(const unsigned char* record, std::size_t size,
                                              const iovec* pieces, int count) {
    begin(record);
    const unsigned char* from = record + kHeader;
    for (int i = 0; i < count; ++i) {
        gcm_.crypt(from, pieces[i].iov_len, pieces[i].iov_base);
        from += pieces[i].iov_len;
    }
    unsigned char kind = 0;
    gcm_.crypt(record + kHeader + size, 1, &kind);
    if (!gcm_.matches(record + kHeader + size + 1)) return std::nullopt;
    return static_cast<Content>(kind);
}

}  // namespace libddp::wire
