// How a client of the tcp store connects: blocking and bounded.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/protocol.h"
#include "util/deadline.h"
#include "wire/channel.h"

namespace libddp {

// Opens a channel to a store server. Retries with jittered, growing pauses until the server answers
// or the deadline passes: the server's process may start later than this one. Throws Error:
// UNAVAILABLE (nobody listens, or not a libddp store), TIMEOUT (no answer at all),
// PERMISSION_DENIED (other secret), UNSUPPORTED (other protocol version).
std::unique_ptr<wire::Channel> connect_to_server(const std::string& host, int port,
                                                 const std::string& secret,
                                                 const Deadline& deadline);

// The same without another try.
std::unique_ptr<wire::Channel> connect_once(const std::string& host, int port,
                                            const std::string& secret, const Deadline& deadline);

// The answer to one request that does not wait, over a connection of its own.
Outcome ask_once(const std::string& host, int port, const std::string& secret,
                 const Request& request, const Deadline& deadline);

}  // namespace libddp
