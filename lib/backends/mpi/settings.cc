#include "backends/mpi/settings.h"

#include "ddp/group.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp::mpi {
namespace {

// Above this, the P - 1 messages of every rank cost more than the further rounds of what MPI
// chooses.
constexpr int kLargestDirectWorld = 16;

// what the clock can count to, and far beyond use
constexpr std::int64_t kLongestTimeoutMs = 1'000'000'000'000;

Algorithm parse_algorithm(const std::string& name, const std::string& key,
                          const ddp_backend_host& host) {
    const bool deterministic = (host.flags & DDP_GROUP_DETERMINISTIC) != 0;
    if (name == "auto")
        return deterministic || host.world_size <= kLargestDirectWorld ? Algorithm::kDirect
                                                                       : Algorithm::kMpi;
    if (name == "direct") return Algorithm::kDirect;
    if (name != "mpi")
        fail(DDP_ERROR_INVALID_ARGUMENT, key, ": '", name, "' is not one of auto, direct, mpi");
    if (deterministic)
        fail(DDP_ERROR_INVALID_ARGUMENT, key,
             ": mpi does not promise the same bits whatever the buckets, which "
             "DDP_GROUP_DETERMINISTIC asks for; use direct");
    return Algorithm::kMpi;
}

}  // namespace

Settings read_settings(const ddp_backend_host& host) {
    OptionReader options(host.options ? host.options : "", "backend_options of mpi");
    Settings settings;
    settings.algorithm = parse_algorithm(options.take("algorithm").value_or("auto"),
                                         options.name("algorithm"), host);
    settings.finalize_timeout_ms = host.timeout_ms;
    options.integer("finalize_timeout_ms", settings.finalize_timeout_ms, 0, kLongestTimeoutMs);
    options.finish();
    return settings;
}

}  // namespace libddp::mpi
