#include "util/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "util/descriptors.h"

namespace libddp {

namespace {

LogLevel level_of_environment() {
    const char* text = std::getenv("DDP_LOG_LEVEL");
    if (!text) return LogLevel::kWarn;
    const char* names[] = {"off", "error", "warn", "info", "debug"};
    for (int i = 0; i < 5; ++i)
        if (std::strcmp(text, names[i]) == 0) return static_cast<LogLevel>(i);
    return LogLevel::kWarn;
}

}  // namespace

// No local static object: threads of a process that ends may still come here.
LogLevel log_level() {
    static std::atomic<int> level{-1};
    int known = level.load(std::memory_order_relaxed);
    if (known < 0) {
        known = static_cast<int>(level_of_environment());
        level.store(known, std::memory_order_relaxed);
    }
    return static_cast<LogLevel>(known);
}

void log_line(LogLevel level, const std::string& text) {
    static const char* const names[] = {"", "error", "warn", "info", "debug"};
    // One write call, so that lines of several ranks on one terminal do not mix.
    std::string line = str("libddp[", getpid(), "] ", names[static_cast<int>(level)], ": ", text, "\n");
    const WriteSignalsHeld held;
    ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    (void)written;  // there is nowhere left to report to
}

}  // namespace libddp
