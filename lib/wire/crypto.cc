#include "wire/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <string>
#include <thread>

#include "util/error.h"

namespace libddp::wire {
namespace {

// They need no destructor, so they work until the last thread has ended. Sequentially consistent:
// either a thread that enters sees the end, or the end waits for it.
std::atomic<int> entered{0};
std::atomic<bool> ended{false};

struct Left {
    void* object;
    Left* next;
};
std::atomic<Left*> left_behind{nullptr};

// A text that is overwritten when it goes.
class SecretText {
public:
    explicit SecretText(std::string_view first, std::string_view second = {}) {
        text_.reserve(first.size() + second.size());  // so no shorter copy stays behind
        text_.append(first).append(second);
    }
    ~SecretText() { explicit_bzero(text_.data(), text_.size()); }
    SecretText(const SecretText&) = delete;
    SecretText& operator=(const SecretText&) = delete;

    char* data() { return text_.data(); }
    std::size_t size() const { return text_.size(); }
    std::string_view view() const { return text_; }

private:
    std::string text_;
};

void end() {
    ended.store(true);
    while (entered.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// In a forked child the other threads do not exist, so nobody leaves for them.
void forked() {
    entered.store(0);
}

bool set_up() {
    require_memory();
    // After OpenSSL's own handler: it runs the last one first.
    return OPENSSL_init_ssl(0, nullptr) == 1 && OPENSSL_atexit(end) == 1 &&
           pthread_atfork(nullptr, nullptr, forked) == 0;
}

bool enter() {
    static const bool is_set_up = set_up();
    (void)is_set_up;
    entered.fetch_add(1);
    if (!ended.load()) return true;
    entered.fetch_sub(1);
    return false;
}

}  // namespace

Cryptography::Cryptography() : alive_(enter()) {}

Cryptography::~Cryptography() {
    if (alive_) entered.fetch_sub(1);
}

void Cryptography::require() const {
    if (!alive_) fail(DDP_ERROR_UNAVAILABLE, "the process is ending");
}

void leave_behind(void* object) noexcept {
    auto* one = new (std::nothrow) Left{object, left_behind.load()};
    while (one != nullptr && !left_behind.compare_exchange_weak(one->next, one)) {
    }
}

void require_memory() {
    constexpr std::size_t kBytes = std::size_t{2} << 20;
    void* probe = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) throw std::bad_alloc();
    munmap(probe, kBytes);
}

void release_thread_state() {
    if (const Cryptography guard; guard) OPENSSL_thread_stop();
}

BriefCryptography::~BriefCryptography() {
    OPENSSL_thread_stop();
}

void prepare_cryptography() {
    // Registers OpenSSL's exit handler. Without any option it does nothing.
    OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr);
}

void hkdf(std::string_view key, const std::string* salt, std::string_view info, unsigned char* to,
          std::size_t size) {
    SecretText material(key);
    std::string context(info), digest = "SHA256", extract = salt == nullptr ? "" : *salt;
    int mode =
        salt == nullptr ? EVP_KDF_HKDF_MODE_EXPAND_ONLY : EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND;
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, material.data(), material.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, context.data(), context.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, extract.data(), extract.size()),
        OSSL_PARAM_construct_end()};
    EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
    EVP_KDF_CTX* state = kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf);
    const bool derived = state != nullptr && EVP_KDF_derive(state, to, size, parameters) == 1;
    EVP_KDF_CTX_free(state);
    EVP_KDF_free(kdf);
    if (!derived) fail(DDP_ERROR_INTERNAL, "OpenSSL cannot derive a key with HKDF-SHA-256");
}

Key derive_key(std::string_view secret, std::string_view label) {
    const Cryptography guard;
    guard.require();
    require_memory();
    // OpenSSL takes no empty key, but a secret may be empty.
    const SecretText material("libddp:", secret);
    const std::string salt = "libddp";
    Key key;
    hkdf(material.view(), &salt, label, key.data(), key.size());
    return key;
}

}  // namespace libddp::wire
