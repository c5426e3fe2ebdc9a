// The handshake by which both ends of a store connection prove that they know the job secret, without sending it.
//
//     client -> server   hello:   magic "ddpC" | u32 version | nonce of the client
//     server -> client   hello:   magic "ddpS" | u32 version | nonce of the server
//     client -> server   proof:   HMAC-SHA-256(secret, "client" role label | version | both nonces)
//     server -> client   verdict: u8 | the same MAC with the server's role label (zeros if refused)
//
// The client proves itself first, so that somebody who merely connects gets nothing to guess secrets with. Roles in the
// MAC keep one end's proof from being reflected as the other's, and both nonces keep an old one from being replayed.
// The secret protects against strangers and mix-ups; what follows is neither encrypted nor signed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace libddp {

inline constexpr std::uint32_t kProtocolVersion = 2;
inline constexpr std::size_t kNonceSize = 32;
inline constexpr std::size_t kProofSize = 32;
inline constexpr std::size_t kHelloSize = 4 + 4 + kNonceSize;
inline constexpr std::size_t kVerdictSize = 1 + kProofSize;

enum class Role { kClient, kServer };

struct Hello {
    bool known = false;  // the magic is right: the other end is libddp in the expected role
    std::uint32_t version = 0;
    std::string nonce;
};

// Throws Error (DDP_ERROR_INTERNAL) if the system has no randomness.
std::string make_nonce();

std::string encode_hello(Role sender, std::string_view nonce);
// bytes: exactly kHelloSize.
Hello decode_hello(Role sender, std::string_view bytes);

std::string make_proof(Role prover, std::string_view secret, std::string_view client_nonce,
                       std::string_view server_nonce);
// In constant time.
bool same_proof(std::string_view a, std::string_view b);

std::string accepted_verdict(std::string_view proof);
std::string refused_verdict();
bool is_accepted(std::string_view verdict);

}  // namespace libddp
