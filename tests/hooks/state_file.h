// The content of a state that a hook has saved.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using StateFile = std::vector<unsigned char>;

// Reads one array; empty if there is none of this name.
inline StateFile array_of(const StateFile& state, const std::string& name) {
    std::uint64_t length = 0;
    std::memcpy(&length, state.data(), sizeof length);
    const auto arrays = state.begin() + 8 + static_cast<std::ptrdiff_t>(length);
    const auto header = nlohmann::json::parse(state.begin() + 8, arrays);
    if (!header.contains(name)) return {};
    const auto range = header[name]["data_offsets"].get<std::vector<std::ptrdiff_t>>();
    return {arrays + range[0], arrays + range[1]};
}
