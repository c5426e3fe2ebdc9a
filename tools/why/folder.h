// The folder in which the processes of a host keep their records: what an earlier job has left in
// it goes, and what is in it travels to another host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace libddp::record {

// Removes what an earlier job of this host has left in the folder.
void forget_earlier(const std::string& folder);
// Removes all records, and what was seen.
void forget_all(const std::string& folder);
// Removes the records of processes of this rank that began before this time of the system's clock.
void forget_before(const std::string& folder, std::int32_t launch_rank, std::int64_t realtime_ns);

// All records of the folder, each with its newest events and all its facts, and what was seen, for
// a folder on another host. A record that would take more than bytes_each is left out.
std::string pack_records(const std::string& folder, std::uint64_t bytes_each);
// Adds what was packed, but for what the folder has already. Throws std::runtime_error if it is
// damaged, or cannot be written.
void unpack_records(const std::string& folder, std::string_view packed);

}  // namespace libddp::record
