// The channels behind a handshake, one for each protection.
#pragma once

#include <cstdint>
#include <memory>

#include "wire/channel.h"
#include "wire/ciphers.h"

namespace libddp::wire {

// After how many records of a sender its key is replaced: AES-GCM is safe for 2^24.5 full records
// (RFC 8446, 5.5). Tests lower it; a channel looks at it when it is made.
inline std::uint64_t records_of_a_key = std::uint64_t{1} << 22;

std::unique_ptr<Channel> make_tls_channel(Descriptor fd, Records out, Records in);
std::unique_ptr<Channel> make_auth_channel(Descriptor fd, FrameCodes out, FrameCodes in);
std::unique_ptr<Channel> make_plain_channel(Descriptor fd);

}  // namespace libddp::wire
