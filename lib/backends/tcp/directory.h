// Where the ranks of a group listen, and with which settings: a line for each rank, as they tell
// each other through the store.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/tcp/settings.h"

namespace libddp::tcp {

struct Listening {
    std::string wire;  // Settings::protection, by name
    int lanes = 1;
    std::string address;  // numeric
    int port = 0;

    bool operator==(const Listening&) const = default;
};

// "encrypted 1 127.0.0.1 29517".
std::string write_listening(const Listening& listening);
// Throws Error (INTERNAL, with the rank) unless the line is what write_listening() gives.
Listening read_listening(std::string_view line, int rank);

// Lines of all ranks, in their order. Throws Error (INTERNAL) unless there are so many, and as
// read_listening().
std::vector<Listening> read_directory(std::string_view text, int world);

// Throws Error (MISMATCH, with the rank) if it has other settings than rank 0.
void require_same_settings(const Listening& of_rank_0, const Listening& theirs, int rank);

}  // namespace libddp::tcp
