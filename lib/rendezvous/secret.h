// The job secret of a tcp store: where it comes from, and where a store may do without; and where
// etcd may do without TLS.
#pragma once

#include <cstddef>
#include <string>

#include "launch/environment.h"
#include "rendezvous/store.h"
#include "rendezvous/uri.h"
#include "util/deadline.h"

namespace libddp {

// A store that is not on a loopback address needs a secret of this many bytes.
inline constexpr std::size_t kShortestSecret = 16;

// The secret with which a process serves or joins the tcp store at config.uri: the program's, else
// DDP_SECRET, else the content of the file that DDP_SECRET_FILE names, else on a loopback address
// this user's (launch/user_secret.h), else "". A shorter one than kShortestSecret is for loopback
// addresses only, unless the program or DDP_INSECURE=1 permits it elsewhere. Then a warning in the
// log says what that means, once. With config.job, another secret that comes from this one and the
// job. Throws Error: PERMISSION_DENIED (too short), INVALID_ARGUMENT (DDP_INSECURE is neither 0 nor
// 1), those of read_secret_file and user_secret, and TIMEOUT, INTERRUPTED or LIMIT from the search
// for the host.
std::string job_secret(const StoreConfig& config, const Deadline& deadline,
                       const GetEnv& get = process_env);

// Refuses an etcd that is not on a loopback address and is reached without TLS, unless the program
// or DDP_INSECURE=1 permits it. Throws Error as job_secret.
void require_protection(const StoreConfig& config, const EtcdAddress& etcd,
                        const Deadline& deadline, const GetEnv& get = process_env);

}  // namespace libddp
