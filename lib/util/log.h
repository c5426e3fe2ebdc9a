// Lines on stderr for the person who runs the job. DDP_LOG_LEVEL=off|error|warn|info|debug chooses;
// the default is warn.
#pragma once

#include <string>

#include "util/error.h"

namespace libddp {

enum class LogLevel { kOff = 0, kError, kWarn, kInfo, kDebug };

LogLevel log_level();
// One line, printable, of at most 8 KiB.
void log_line(LogLevel level, const std::string& text);
// With which a line begins.
inline constexpr const char* kLogPrefix = "libddp[";

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
    if (level <= log_level()) log_line(level, str(parts...));
}

}  // namespace libddp
