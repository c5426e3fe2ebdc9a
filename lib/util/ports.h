// The ports that a firewall leaves open: DDP_PORTS in the environment, FIRST-LAST.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace libddp {

struct PortRange {
    int first = 0;
    int last = 0;

    std::string text() const;  // "DDP_PORTS=20000-20099"
};

// nullopt: the value is empty, and any port will do. Throws INVALID_ARGUMENT unless it is
// FIRST-LAST, two ports from 1 to 65535.
std::optional<PortRange> parse_ports(std::string_view value);

// DDP_PORTS of this process.
std::optional<PortRange> allowed_ports();

}  // namespace libddp
