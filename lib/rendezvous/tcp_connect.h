// Opens an authenticated connection to a store server: blocking, bounded, with retries. What comes back is an ordinary
// socket.
#pragma once

#include <string>

#include "util/deadline.h"

namespace libddp {

// Retries with jittered, growing pauses until the server answers or the deadline passes: the server's process may start
// later than this one. Returns a connected socket that has passed the handshake; the caller owns it. Throws Error:
// UNAVAILABLE (nobody listens, or not a libddp store), TIMEOUT (no answer at all), PERMISSION_DENIED (other secret),
// UNSUPPORTED (other protocol version).
int connect_to_server(const std::string& host, int port, const std::string& secret, const Deadline& deadline);

// The same without another try.
int connect_once(const std::string& host, int port, const std::string& secret, const Deadline& deadline);

}  // namespace libddp
