#include "rendezvous/secret.h"

#include <atomic>
#include <vector>

#include "launch/secret_file.h"
#include "launch/user_secret.h"
#include "util/error.h"
#include "util/log.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

// A variable that is set to nothing counts as not set, as in a shell's ${NAME:-}.
std::string variable(const GetEnv& get, const char* name) {
    return get(name).value_or("");
}

std::optional<std::string> find_secret(const std::optional<std::string>& given, const GetEnv& get) {
    if (given) return given;
    if (std::string secret = variable(get, "DDP_SECRET"); !secret.empty()) return secret;
    const std::string path = variable(get, "DDP_SECRET_FILE");
    return path.empty() ? std::nullopt : std::optional(read_secret_file(path, "DDP_SECRET_FILE"));
}

// A rank of another job of the same user that comes to this address by mistake does not know it.
std::string of_job(const std::string& secret, const std::string& job) {
    return job.empty() ? secret : str(secret, '\0', job);
}

bool environment_permits(const GetEnv& get) {
    const std::string said = variable(get, "DDP_INSECURE");
    if (!said.empty() && said != "0" && said != "1")
        fail(DDP_ERROR_INVALID_ARGUMENT, "DDP_INSECURE: is '", said, "', not 0 or 1");
    return said == "1";
}

// The reason why `host` is not this machine alone; "" if all its addresses are loopback addresses.
// A name that nobody knows yet may become any address.
std::string beyond_loopback(const HostAndPort& at, const std::string& store,
                            const Deadline& deadline) {
    std::vector<SocketAddress> addresses;
    try {
        addresses = resolve(at.host, at.port, deadline);
    } catch (const Error& error) {
        const ErrorInfo& info = error.info();
        if (info.code == DDP_ERROR_UNAVAILABLE) return info.message;
        fail(info.code, "the store at ", store, " cannot be used: ", info.message);
    }
    for (const auto& address : addresses) {
        if (address.is_loopback()) continue;
        const std::string number = address.host();
        return number == at.host
                   ? number + " is not a loopback address"
                   : str("'", at.host, "' is ", number, ", which is not a loopback address");
    }
    return "";
}

[[noreturn]] void refuse(const StoreConfig& config, const std::string& host, const std::string& why,
                         bool has_none) {
    fail(DDP_ERROR_PERMISSION_DENIED, "the store at ", config.uri,
         " needs a job secret of at least ", kShortestSecret, " bytes: ", why, ". ",
         has_none ? "There is no secret" : "The secret is shorter",
         ", so other machines could join. Make one secret and give it to every rank, for example "
         "with: export DDP_SECRET=$(head -c 32 /dev/urandom | base64 -w0). DDP_SECRET_FILE may "
         "name a file with it instead. If all ranks are on one machine, let them meet at 127.0.0.1 "
         "instead of ",
         host,
         " (MASTER_ADDR; torchrun: --local-addr). DDP_INSECURE=1 does without a secret. See "
         "docs/ddprun.md, \"The job secret\"");
}

void warn_once(const StoreConfig& config, bool has_none) {
    static std::atomic_flag told = ATOMIC_FLAG_INIT;
    if (told.test_and_set()) return;
    log(LogLevel::kWarn, "the store at ", config.uri, " is used ",
        has_none ? "without a job secret" : "with a short job secret",
        ", as this program or DDP_INSECURE asks: any process that reaches its address can join the "
        "job, and read and change what ranks exchange");
}

}  // namespace

std::string job_secret(const StoreConfig& config, const Deadline& deadline, const GetEnv& get) {
    const std::optional<std::string> found = find_secret(config.secret, get);
    const std::string secret = found.value_or("");
    if (secret.size() >= kShortestSecret) return of_job(secret, config.job);
    const StoreUri uri = parse_store_uri(config.uri);
    const std::string why =
        beyond_loopback({uri.host, uri.port}, tcp_uri(uri.host, uri.port), deadline);
    const bool permitted = config.insecure || environment_permits(get);
    if (why.empty()) return of_job(found || permitted ? secret : user_secret(get), config.job);
    if (!permitted) refuse(config, uri.host, why, secret.empty());
    warn_once(config, secret.empty());
    return of_job(secret, config.job);
}

void require_protection(const StoreConfig& config, const EtcdAddress& etcd,
                        const Deadline& deadline, const GetEnv& get) {
    if (etcd.tls) return;
    for (const auto& endpoint : etcd.endpoints) {
        const std::string why = beyond_loopback(endpoint, config.uri, deadline);
        if (why.empty()) continue;
        if (config.insecure || environment_permits(get)) {
            static std::atomic_flag told = ATOMIC_FLAG_INIT;
            if (!told.test_and_set())
                log(LogLevel::kWarn, "the store at ", config.uri,
                    " is used without TLS, as this program or DDP_INSECURE asks: whoever is on the "
                    "way can read and change what ranks exchange, passwords among it");
            return;
        }
        fail(DDP_ERROR_PERMISSION_DENIED, "the store at ", config.uri, " needs TLS: ", why,
             ", so others on the network could read and change what ranks exchange. Write etcds:// "
             "and, where the system does not know the authority of etcd's certificate, "
             "?cacert=FILE. DDP_INSECURE=1 does without TLS. See docs/ddprun.md, \"A store on "
             "etcd\"");
    }
}

}  // namespace libddp
