#include "rendezvous/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "rendezvous/protocol.h"
#include "rendezvous/store.h"
#include "util/error.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

constexpr char kAccepted = 1;
constexpr char kRefused = 2;

std::string_view magic(Role role) {
    return role == Role::kClient ? "ddpC" : "ddpS";
}

std::string_view label(Role role) {
    return role == Role::kClient ? "libddp store: client knows the secret" : "libddp store: server knows the secret";
}

}  // namespace

void prepare_stores() {
    wire::prepare_cryptography();
}

std::string make_nonce() {
    // Not OpenSSL's, which crashes where it finds no memory.
    unsigned char bytes[kNonceSize];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        fail(DDP_ERROR_INTERNAL, "the system gives no random numbers");
    return std::string(bytes, bytes + sizeof bytes);
}

std::string encode_hello(Role sender, std::string_view nonce) {
    ByteWriter out;
    out.raw(magic(sender));
    out.u32(kProtocolVersion);
    out.raw(nonce);
    return out.take();
}

Hello decode_hello(Role sender, std::string_view bytes) {
    ByteReader in(bytes);
    Hello hello;
    hello.known = in.raw(4) == magic(sender);
    hello.version = in.u32();
    hello.nonce = in.raw(kNonceSize);
    return hello;
}

std::string make_proof(Role prover, std::string_view secret, std::string_view client_nonce,
                       std::string_view server_nonce) {
    ByteWriter text;
    text.string(label(prover));
    text.u32(kProtocolVersion);
    text.string(client_nonce);
    text.string(server_nonce);
    std::string signed_text = text.take();
    const wire::Cryptography inside;
    inside.require();
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    std::string key(secret);  // its data() is never NULL: OpenSSL gives a NULL key another meaning
    const unsigned char* result =
        HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(signed_text.data()), signed_text.size(), mac, &size);
    if (result == nullptr || size != kProofSize) fail(DDP_ERROR_INTERNAL, "libcrypto cannot compute HMAC-SHA-256");
    return std::string(mac, mac + size);
}

bool same_proof(std::string_view a, std::string_view b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string accepted_verdict(std::string_view proof) {
    std::string verdict(1, kAccepted);
    verdict.append(proof);
    return verdict;
}

std::string refused_verdict() {
    std::string verdict(1, kRefused);
    verdict.append(kProofSize, '\0');
    return verdict;
}

bool is_accepted(std::string_view verdict) {
    return !verdict.empty() && verdict.front() == kAccepted;
}

}  // namespace libddp
