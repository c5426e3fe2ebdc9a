// A verdict is the error that all ranks of a group agree on. This is its form in the store.
#pragma once

#include <string>
#include <string_view>

#include "util/error.h"

namespace libddp {

std::string encode_verdict(const ErrorInfo& error);
// Malformed text gives an INTERNAL error that quotes it.
ErrorInfo decode_verdict(std::string_view text);

}  // namespace libddp
