// The content of a job's records, as JSON: for the report, and for programs of the user.
// docs/record.md lists its fields.
#pragma once

#include <cstdint>
#include <string>

#include "why/job.h"

namespace why {

// patience_ns: as for find_cause. Bytes of the program's texts that are no UTF-8 become U+FFFD.
std::string summarize(const Job& job, std::int64_t patience_ns);

}  // namespace why
