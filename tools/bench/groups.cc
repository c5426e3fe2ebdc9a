#include "groups.h"

#include <algorithm>
#include <stdexcept>

namespace bench {

BackendSpec parse_backend(const std::string& text) {
    const std::size_t colon = text.find(':');
    BackendSpec spec{text.substr(0, colon),
                     colon == std::string::npos ? "" : text.substr(colon + 1)};
    if (spec.name.empty()) {
        throw std::invalid_argument("--backend: '" + text +
                                    "' does not begin with a backend's name");
    }
    std::replace(spec.options.begin(), spec.options.end(), ':', ',');
    return spec;
}

Group join(const std::string& backend, const Options& options, const std::string& group_name) {
    const BackendSpec spec = parse_backend(backend);
    std::string backend_options = spec.options;
    if (!options.backend_options.empty()) {
        backend_options += (backend_options.empty() ? "" : ",") + options.backend_options;
    }
    ddp_group_options join;
    ddp_group_options_init(&join);
    join.backend = spec.name.c_str();
    join.backend_options = backend_options.empty() ? nullptr : backend_options.c_str();
    join.group_name = group_name.c_str();
    join.round_robin = options.groups;
    // 300 s: libddp's default
    join.timeout_ms = static_cast<std::int64_t>(1e3 * std::min(options.timeout, 300.0));
    ddp_group* group = nullptr;
    Result result;
    result.check(ddp_group_create(&join, &group, result));
    return Group(group);
}

Ranks ranks_of(ddp_group* group) {
    const auto barrier = [group] {
        Result result;
        result.check(ddp_barrier(group, nullptr, result));
    };
    const auto broadcast = [group](std::int64_t& value) {
        Result result;
        result.check(ddp_broadcast(group, &value, 1, DDP_I64, 0, nullptr, result));
    };
    const auto maximum_of = [group](std::vector<double>& values) {
        Result result;
        result.check(ddp_allreduce(group, nullptr, values.data(), values.size(), DDP_F64, DDP_MAX,
                                   nullptr, result));
    };
    return {barrier, broadcast, maximum_of};
}

std::string label(const ddp_group* group, const std::string& backend) {
    const std::size_t colon = backend.find(':');
    return ddp_group_backend(group) + (colon == std::string::npos ? "" : backend.substr(colon));
}

}  // namespace bench
