#include "util/ports.h"

#include <cstdlib>

#include "util/error.h"
#include "util/options.h"
#include "util/text.h"

namespace libddp {
namespace {

constexpr int kHighest = 65535;
constexpr const char* kName = "DDP_PORTS";

}  // namespace

std::string PortRange::text() const {
    return str(kName, "=", first, "-", last);
}

std::optional<PortRange> parse_ports(std::string_view value) {
    if (value.empty()) return std::nullopt;
    const auto dash = value.find('-');
    if (dash == std::string_view::npos)
        fail(DDP_ERROR_INVALID_ARGUMENT, kName, ": '", value,
             "' is not FIRST-LAST, such as 20000-20099");
    const auto port = [](std::string_view text) {
        return static_cast<int>(parse_int(text, 1, kHighest, kName));
    };
    const PortRange range{port(value.substr(0, dash)), port(value.substr(dash + 1))};
    if (range.first > range.last)
        fail(DDP_ERROR_INVALID_ARGUMENT, kName, ": in ", value,
             " the first port is above the last");
    return range;
}

std::optional<PortRange> allowed_ports() {
    const char* value = std::getenv(kName);
    return parse_ports(value ? value : "");
}

}  // namespace libddp
