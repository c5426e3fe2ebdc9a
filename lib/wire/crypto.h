// OpenSSL in a process that may end while threads of libddp still run.
#pragma once

#include <string.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace libddp::wire {

// Keeps OpenSSL from cleaning up while it lives. Every call of OpenSSL happens inside one. Short:
// exit() waits for its end. Any number of threads may be inside.
class Cryptography {
public:
    Cryptography();
    ~Cryptography();
    Cryptography(const Cryptography&) = delete;
    Cryptography& operator=(const Cryptography&) = delete;

    // False: the process is ending and OpenSSL may not be called. Its objects are then left as they
    // are.
    explicit operator bool() const { return alive_; }
    // Throws UNAVAILABLE then.
    void require() const;

private:
    const bool alive_;
};

// Keeps a pointer to an object of OpenSSL's that nothing may free any more, so that no leak checker
// reports it.
void leave_behind(void* object) noexcept;

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

// Bytes that are overwritten when they go, however they go.
template <std::size_t kSize>
struct SecretBytes : std::array<unsigned char, kSize> {
    ~SecretBytes() { explicit_bzero(this->data(), kSize); }
};

// HKDF-SHA-256 (RFC 5869) of at most 255 * 32 bytes; without a salt only its second half, which
// expands a key. Inside Cryptography.
void hkdf(std::string_view key, const std::string* salt, std::string_view info, unsigned char* to,
          std::size_t size);

using Key = SecretBytes<32>;

// HKDF-SHA-256: a key for one purpose, which says nothing about the secret or about keys of other
// labels.
Key derive_key(std::string_view secret, std::string_view label);

// OpenSSL crashes in places where it finds no memory. Throws std::bad_alloc unless there is more
// than it takes for a handshake, or for what it sets up once.
void require_memory();

// Frees what OpenSSL keeps for the calling thread; OpenSSL makes it again when it needs it. A
// thread of libddp calls this after handshakes: it may outlive OpenSSL. A thread of the program
// does not: the program may use OpenSSL too.
void release_thread_state();

// The same at the end of a scope, also when the process ends meanwhile: its end waits for the scope,
// which must be short. For a thread that handshakes only now and then. Throws UNAVAILABLE where
// OpenSSL has ended.
class BriefCryptography {
public:
    BriefCryptography() { inside_.require(); }
    ~BriefCryptography();

private:
    const Cryptography inside_;
};

// Makes OpenSSL clean up after the destructor of the static object that calls this in its
// constructor.
void prepare_cryptography();

}  // namespace libddp::wire
