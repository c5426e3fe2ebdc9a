#include "backends/gloo/settings.h"

#include <bit>

#include "ddp/group.h"
#include "util/error.h"
#include "util/options.h"
#include "util/ports.h"

namespace libddp::gloo_tcp {
namespace {

// Above this, the P - 1 connections that `direct` keeps busy and its P-way staging cost more than
// the ring's extra rounds.
constexpr int kLargestDirectWorld = 16;

// One set of connections has one thread that moves bytes. While it waits for the peer's, nothing
// moves.
constexpr int kLanes = 2;
constexpr int kMostLanes = 8;

Algorithm automatic(int world_size, bool deterministic) {
    return deterministic || world_size <= kLargestDirectWorld ? Algorithm::kDirect
                                                              : Algorithm::kRing;
}

Algorithm parse_algorithm(const std::string& name, const ddp_backend_host& host) {
    const bool deterministic = (host.flags & DDP_GROUP_DETERMINISTIC) != 0;
    if (name == "auto") return automatic(host.world_size, deterministic);
    if (name == "direct") return Algorithm::kDirect;
    if (name == "ring") {
        if (deterministic && host.world_size > 2)
            fail(DDP_ERROR_INVALID_ARGUMENT,
                 "backend_options: algorithm=ring is not deterministic above 2 ranks; use "
                 "algorithm=direct");
        return Algorithm::kRing;
    }
    if (name == "bcube") {
        if (deterministic && !std::has_single_bit(static_cast<unsigned>(host.world_size)))
            fail(DDP_ERROR_INVALID_ARGUMENT,
                 "backend_options: algorithm=bcube is deterministic only when the world size is a ",
                 "power of two, and it is ", host.world_size, "; use algorithm=direct");
        return Algorithm::kBcube;
    }
    fail(DDP_ERROR_INVALID_ARGUMENT, "backend_options: algorithm '", name,
         "' is not one of auto, direct, ring, bcube");
}

int lanes_for(const std::string& text, Algorithm algorithm) {
    if (text == "auto") return algorithm == Algorithm::kDirect ? kLanes : 1;
    const auto lanes = static_cast<int>(parse_int(text, 1, kMostLanes, "backend_options: lanes"));
    if (lanes > 1 && algorithm != Algorithm::kDirect)
        fail(DDP_ERROR_INVALID_ARGUMENT, "backend_options: lanes=", lanes,
             " needs algorithm=direct; ring and bcube have one");
    return lanes;
}

}  // namespace

Settings read_settings(const ddp_backend_host& host) {
    if (const auto allowed = allowed_ports(); allowed && host.world_size > 1)
        fail(DDP_ERROR_UNSUPPORTED, "Gloo listens on ports that the kernel picks, and ",
             allowed->text(), " allows only these; use backend tcp, or unset DDP_PORTS");
    OptionReader options(host.options ? host.options : "", "backend_options of gloo");
    Settings settings;
    settings.algorithm = parse_algorithm(options.take("algorithm").value_or("auto"), host);
    settings.lanes = lanes_for(options.take("lanes").value_or("auto"), settings.algorithm);
    settings.network = backend::Network::from(options);
    options.finish();
    return settings;
}

std::uint32_t capabilities_of(Algorithm algorithm, int world_size) {
    // Gloo's event loop ends the process when a message is longer than its receiver expects.
    constexpr std::uint32_t always = DDP_BACKEND_NEEDS_MATCH | DDP_BACKEND_ALL_TO_ALL;
    // One rank only copies and scales, whatever the algorithm.
    if (world_size == 1 || algorithm == Algorithm::kDirect)
        return always | DDP_BACKEND_COUNTS | DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC;
    const bool deterministic = algorithm == Algorithm::kRing
                                   ? world_size == 2
                                   : std::has_single_bit(static_cast<unsigned>(world_size));
    // A part must have the bits of an allreduce, whose order is Gloo's own.
    if (deterministic && world_size > 2) return always | DDP_BACKEND_DETERMINISTIC;
    return always | DDP_BACKEND_COUNTS | (deterministic ? DDP_BACKEND_DETERMINISTIC : 0);
}

}  // namespace libddp::gloo_tcp
