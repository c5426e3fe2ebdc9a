// A bucket plan as text, so that a job that is started again, or a person, can say what it shall be.
#pragma once

#include <string>
#include <vector>

#include "core/param_table.h"
#include "core/plan.h"

namespace libddp {

std::string plan_to_text(const BucketPlan& plan, const ParamTable& table);

// The buckets as lists of parameters. Throws INVALID_ARGUMENT, naming `call` and what is wrong.
std::vector<std::vector<std::int32_t>> plan_from_text(const std::string& text, const ParamTable& table,
                                                      const char* call);

}  // namespace libddp
