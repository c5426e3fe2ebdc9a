#include "backends/tcp/settings.h"

#include <cstdlib>

#include "ddp/group.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp::tcp {
namespace {

// Above this, each rank is connected with a few others only. The P - 1 connections that `direct`
// keeps busy and its P-way staging cost more than the ring's extra rounds.
constexpr int kLargestDirectWorld = 16;
constexpr int kMostLanes = 8;

Algorithm parse_algorithm(const std::string& name, const ddp_backend_host& host) {
    const bool deterministic = (host.flags & DDP_GROUP_DETERMINISTIC) != 0;
    if (name == "auto")
        return deterministic || host.world_size <= kLargestDirectWorld ? Algorithm::kDirect
                                                                       : Algorithm::kRing;
    if (name == "direct") return Algorithm::kDirect;
    if (name != "ring")
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend_options: algorithm '", name,
             "' is not one of auto, direct, ring");
    if (deterministic && host.world_size > 2)
        fail(DDP_ERROR_INVALID_ARGUMENT,
             "backend_options: algorithm=ring is not deterministic above 2 ranks; use "
             "algorithm=direct");
    return Algorithm::kRing;
}

wire::Protection parse_protection(const std::string& name, const char* what) {
    for (const auto protection : {wire::Protection::kEncrypted, wire::Protection::kPlain})
        if (name == name_of(protection)) return protection;
    fail(DDP_ERROR_INVALID_ARGUMENT, what, ": wire '", name, "' is not one of encrypted, plain");
}

}  // namespace

std::string name_of(wire::Protection protection) {
    static constexpr const char* kNames[] = {"encrypted", "plain"};
    return kNames[static_cast<int>(protection)];
}

Settings read_settings(const ddp_backend_host& host) {
    OptionReader options(host.options ? host.options : "", "backend_options of tcp");
    Settings settings;
    settings.algorithm = parse_algorithm(options.take("algorithm").value_or("auto"), host);
    if (const auto lanes = options.take("lanes"); lanes && *lanes != "auto")
        settings.lanes = static_cast<int>(parse_int(*lanes, 1, kMostLanes, options.name("lanes")));
    const std::string protection = options.take("wire").value_or("");
    const char* from_environment = std::getenv("DDP_WIRE");
    if (!protection.empty())
        settings.protection = parse_protection(protection, "backend_options");
    else if (from_environment && *from_environment)
        settings.protection = parse_protection(from_environment, "DDP_WIRE");
    settings.network = backend::Network::from(options);
    options.finish();
    return settings;
}

}  // namespace libddp::tcp
