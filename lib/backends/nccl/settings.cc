#include "backends/nccl/settings.h"

#include "ddp/group.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp::cuda {
namespace {

bool is_power_of_two(std::int32_t number) {
    return (number & (number - 1)) == 0;
}

}  // namespace

Settings read_settings(const ddp_backend_host& host) {
    OptionReader options(host.options ? host.options : "", "backend_options of nccl");
    const bool deterministic = (host.flags & DDP_GROUP_DETERMINISTIC) != 0;
    const std::string algorithm = options.take("algorithm").value_or("auto");
    if (algorithm != "auto" && algorithm != "direct" && algorithm != "nccl")
        fail(DDP_ERROR_INVALID_ARGUMENT, options.name("algorithm"), ": '", algorithm,
             "' is not one of auto, direct, nccl");
    if (algorithm == "nccl" && deterministic)
        fail(DDP_ERROR_INVALID_ARGUMENT, options.name("algorithm"),
             ": nccl does not promise the same bits whatever the buckets, which "
             "DDP_GROUP_DETERMINISTIC asks for; use direct");
    Settings settings;
    settings.direct = algorithm == "direct" || (algorithm == "auto" && deterministic);
    options.flag("register", settings.registers);
    options.finish();
    // NCCL multiplies before it adds, which is exact with powers of two; and not in registered
    // memory, where it had defects.
    settings.averages = !settings.direct && !settings.registers && is_power_of_two(host.world_size);
    return settings;
}

}  // namespace libddp::cuda
