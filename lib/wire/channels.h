// The channels behind a handshake, one for each protection.
#pragma once

#include <memory>

#include "wire/channel.h"
#include "wire/ciphers.h"

namespace libddp::wire {

std::unique_ptr<Channel> make_encrypted_channel(Descriptor fd, Frames out, Frames in);
std::unique_ptr<Channel> make_plain_channel(Descriptor fd);

}  // namespace libddp::wire
