// The groups that a benchmark compares.
#pragma once

#include <string>

#include "handles.h"
#include "measure.h"
#include "options.h"

namespace bench {

// The value of --backend: NAME[:key=value[:key=value...]].
struct BackendSpec {
    std::string name;
    std::string options;  // as in ddp_group_options, "key=value,key=value"
};

// Throws std::invalid_argument, naming what it cannot read.
BackendSpec parse_backend(const std::string& text);

// Joins a group of its own among the ranks of this job, with the given name. Collective.
Group join(const std::string& backend, const Options& options, const std::string& group_name);

// Measures among the ranks of this group, which must outlive what is returned.
Ranks ranks_of(ddp_group* group);

// The name of a group in rows: its backend's name, as it was chosen, and the options that --backend
// gave.
std::string label(const ddp_group* group, const std::string& backend);

}  // namespace bench
