// How much longer than on a free machine something may take in a test: sanitizers slow it down
// (CMakePresets.json says by how much), and so do programs beside it (tools/test --busy). slack.py
// is the same for tests in Python.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace libddp {

inline double slack() {
    const char* slower = std::getenv("DDP_TEST_SLACK");
    const char* busy = std::getenv("DDP_TEST_BUSY");
    return (slower ? std::atof(slower) : 1) * (1 + (busy ? std::atof(busy) : 0));
}

inline std::int64_t with_slack(std::int64_t ms) {
    return static_cast<std::int64_t>(static_cast<double>(ms) * slack());
}

}  // namespace libddp
