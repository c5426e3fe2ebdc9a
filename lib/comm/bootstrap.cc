#include "comm/bootstrap.h"

#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/group_keys.h"
#include "comm/verdict.h"
#include "launch/environment.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/log.h"
#include "util/mutex.h"
#include "util/process.h"

namespace libddp {
namespace {

// How long a rank that cannot join may take to tell the others.
constexpr std::int64_t kTellMs = 2'000;

// The stores and groups that this process has opened and joined. Ranks that create their groups in
// the same order agree on the numbers, ranks that are threads of one process too.
struct Process {
    Process() { prepare_stores(); }

    Mutex mutex;
    // For each address whose server this process runs: one thread at a time opens it. Taken before
    // `mutex`.
    std::map<std::string, Mutex> opening DDP_GUARDED_BY(mutex);
    std::map<std::string, std::weak_ptr<Store>> clients DDP_GUARDED_BY(mutex);
    // The server that rank 0 runs lives as long as the process: other ranks may need it when rank
    // 0's groups are gone.
    std::map<std::string, std::shared_ptr<Store>> hosted DDP_GUARDED_BY(mutex);
    std::map<std::string, std::int64_t> generations DDP_GUARDED_BY(mutex);
};

Process& process() {
    static OnePerProcess<Process> all;
    Process& mine = all.get();
    // After what prepare_stores() makes, and so destroyed before it.
    static const struct AtEnd {
        ~AtEnd() { all.destroy(); }
    } end;
    return mine;
}

bool starts_with(const std::string& text, const char* prefix) {
    return text.rfind(prefix, 0) == 0;
}

// The last process that leaves such a store removes what is in it.
bool ends_with_its_users(const std::string& uri) {
    return starts_with(uri, "file://") || starts_with(uri, "etcd://") ||
           starts_with(uri, "etcds://");
}

// Its connection has ended, and does not come back.
bool is_lost(Store& store) {
    try {
        store.answers(1);
        return false;
    } catch (const Error&) {
        return true;
    }
}

// A store of this process that is open already, or null.
std::shared_ptr<Store> open_already(Process& p, const std::string& uri) DDP_REQUIRES(p.mutex) {
    if (auto found = p.hosted.find(uri); found != p.hosted.end()) return found->second;
    auto found = p.clients.find(uri);
    auto store = found == p.clients.end() ? nullptr : found->second.lock();
    return store && !is_lost(*store) ? store : nullptr;
}

Mutex& opening_of(Process& p, const std::string& uri) {
    const Lock lock(p.mutex);
    return p.opening[uri];
}

std::shared_ptr<Store> shared_store(const StoreConfig& config) {
    auto& p = process();
    std::optional<Lock> opening;
    if (config.is_server) opening.emplace(opening_of(p, config.uri));
    {
        const Lock lock(p.mutex);
        if (auto store = open_already(p, config.uri)) return store;
    }
    // Not under p.mutex: another thread of this process may be the rank that runs the server for
    // which this one waits.
    auto store = open_store(config);
    const Lock lock(p.mutex);
    if (config.is_server) {
        p.hosted[config.uri] = store;
    } else {
        if (auto other = open_already(p, config.uri)) return other;
        p.clients[config.uri] = store;
    }
    return store;
}

std::int64_t next_generation(const std::string& key) {
    auto& p = process();
    const Lock lock(p.mutex);
    return ++p.generations[key];
}

void check_ranks(std::int32_t rank, std::int32_t world) {
    if (world < 1)
        fail(DDP_ERROR_INVALID_ARGUMENT, "world_size is ", world,
             ", but a group has at least 1 rank (use ddp_group_options_init, which sets -1: take "
             "it from the environment)");
    if (rank < 0 || rank >= world)
        fail(DDP_ERROR_INVALID_ARGUMENT, "rank is ", rank, ", but the ranks of a world of ", world,
             " are 0 to ", world - 1);
}

void check_names(const GroupConfig& config) {
    if (config.rank < -1)
        fail(DDP_ERROR_INVALID_ARGUMENT, "rank is ", config.rank,
             "; it is -1 (environment) or at least 0");
    // The caller's arguments must fit together, whatever the environment says.
    if (config.world != -1 && (config.world < 1 || config.rank >= 0))
        check_ranks(config.rank, config.world);
    if (config.name.empty() || config.name.size() > 256)
        fail(DDP_ERROR_INVALID_ARGUMENT, "group_name has ", config.name.size(),
             " bytes; 1 to 256 are allowed");
    if (config.timeout_ms < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "timeout_ms is ", config.timeout_ms,
             "; it must not be negative");
}

void warn_once(const std::string& doubt) {
    static std::atomic_flag told = ATOMIC_FLAG_INIT;
    if (!told.test_and_set()) log(LogLevel::kWarn, doubt);
}

// Rank and world: the caller's where given, the environment's otherwise.
JobEnvironment job_of(const GroupConfig& config) {
    const bool env_address = config.init_method == "env://" && !config.store;
    JobEnvironment job;
    const bool all_from_env = env_address && config.rank < 0 && config.world < 0;
    if (config.or_alone && all_from_env && !launched()) {
        job.rank = 0;
        job.world_size = 1;
        return job;
    }
    if (config.rank < 0 || config.world < 0 || (env_address && config.world > 1))
        job = discover_environment();
    if (config.rank >= 0) job.rank = config.rank;
    if (config.world >= 0) job.world_size = config.world;
    if (!env_address) {
        job.id.clear();
        job.store_uri = config.store ? config.store->describe() : config.init_method;
        job.rank0_hosts_store = !config.store;
    }
    return job;
}

// Without '/', so that no group has its keys below those of another, whatever their names: the last
// rank removes all that is below.
std::string name_in_keys(const std::string& name) {
    std::string text;
    for (const char c : name) text += c == '/' ? "|s" : c == '|' ? "|p" : std::string(1, c);
    return text;
}

std::string next_prefix(const GroupConfig& config, const JobEnvironment& job,
                        const std::string& store) {
    return str("ddp/group/", name_in_keys(config.name), "/", job.restart, ".",
               next_generation(str(store, "|", config.name, "|", job.rank)), "/");
}

// Descriptors do not suffice for a client of the store, so this rank cannot join. The others hear
// why.
ErrorInfo tell_without_client(const StoreConfig& store, const GroupConfig& config,
                              const JobEnvironment& job, const ErrorInfo& error) {
    ErrorInfo failure = could_not_join(job.rank, config.name, error);
    try {
        const std::string prefix = next_prefix(config, job, store_name(store.uri));
        set_without_client(store, prefix + group_keys::kVerdict, encode_verdict(failure), kTellMs);
        set_without_client(store, prefix + group_keys::left(job.rank), "0", kTellMs);
    } catch (const Error& untold) {
        log(LogLevel::kWarn, "could not tell the other ranks why rank ", job.rank,
            " does not join: ", untold.what());
    }
    return failure;
}

}  // namespace

MeetingPlace find_meeting_place(const GroupConfig& config) {
    occupy_standard_descriptors();
    check_names(config);
    const auto& method = config.init_method;
    if (!config.store && method != "env://" && !starts_with(method, "tcp://") &&
        !ends_with_its_users(method))
        fail(DDP_ERROR_INVALID_ARGUMENT, "init_method '", method,
             "' is none of env://, tcp://host:port, file:///path and etcd://host:port/name");
    JobEnvironment job = job_of(config);
    check_ranks(job.rank, job.world_size);
    if (job.store_uri.empty() && job.world_size > 1) refuse_without_address(job);
    if (job.rank == 0 && !job.doubt.empty()) warn_once(job.doubt);

    const bool rank0_hosts = job.rank0_hosts_store && starts_with(job.store_uri, "tcp://");
    const bool store_may_end =
        !config.store && (rank0_hosts ? job.rank == 0 : ends_with_its_users(job.store_uri));
    MeetingPlace place{job.rank, job.world_size, config.store, rank0_hosts ? 0 : -1, store_may_end,
                       ""};
    if (!place.store && (place.world > 1 || method != "env://")) {
        StoreConfig store;
        store.uri = job.store_uri;
        store.is_server = job.rank == 0 && rank0_hosts;
        store.timeout_ms = config.timeout_ms;
        store.secret = config.secret;
        store.insecure = config.insecure;
        // Where the launcher or somebody else hosts it, the host does not know what ranks are
        // called.
        if (rank0_hosts) store.job = job.id;
        if (store.is_server) store.clients = static_cast<std::size_t>(place.world) - 1;
        try {
            place.store = shared_store(store);
        } catch (const Error& error) {
            if (store.is_server || error.info().code != DDP_ERROR_LIMIT ||
                !starts_with(store.uri, "tcp://"))
                throw;
            throw Error(tell_without_client(store, config, job, error.info()));
        }
    }
    place.prefix = config.prefix.empty()
                       ? next_prefix(config, job, place.store ? place.store->describe() : "alone")
                       : config.prefix;
    return place;
}

std::shared_ptr<Store> find_store(const GroupConfig& config) {
    check_names(config);
    if (config.store) return config.store;
    StoreConfig store;
    store.uri = config.init_method;
    if (config.init_method == "env://") {
        const JobEnvironment job = discover_environment();
        if (job.store_uri.empty()) refuse_without_address(job);
        if (job.rank0_hosts_store && starts_with(job.store_uri, "tcp://"))
            fail(DDP_ERROR_UNSUPPORTED, "with the launcher ", job.launcher,
                 " rank 0 runs the store, and the job would end with it; start the job with "
                 "ddprun, or give the address of a store that outlives the ranks");
        store.uri = job.store_uri;
    }
    store.timeout_ms = config.timeout_ms;
    store.secret = config.secret;
    store.insecure = config.insecure;
    return shared_store(store);
}

}  // namespace libddp
