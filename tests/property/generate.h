// Random cases for RapidCheck.
#pragma once

#include <rapidcheck.h>

#include "property/case.h"

namespace property {

// Shrinks towards one rank, one parameter of one element and one plain step.
rc::Gen<Case> any_case();

}  // namespace property
