#include "util/log.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace libddp {

LogLevel log_level() {
    static const LogLevel level = [] {
        const char* text = std::getenv("DDP_LOG_LEVEL");
        if (!text) return LogLevel::kWarn;
        const char* names[] = {"off", "error", "warn", "info", "debug"};
        for (int i = 0; i < 5; ++i)
            if (std::strcmp(text, names[i]) == 0) return static_cast<LogLevel>(i);
        return LogLevel::kWarn;
    }();
    return level;
}

void log_line(LogLevel level, const std::string& text) {
    static const char* const names[] = {"", "error", "warn", "info", "debug"};
    // One write call, so that lines of several ranks on one terminal do not mix.
    std::string line = str("libddp[", getpid(), "] ", names[static_cast<int>(level)], ": ", text, "\n");
    ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    (void)written;  // there is nowhere left to report to
}

}  // namespace libddp
