#include "util/log.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "util/descriptors.h"
#include "util/printable.h"

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
    // One call, so that lines of several ranks on one terminal do not mix; and no allocation: there
    // may be no memory.
    char prefix[48];
    const int size = std::snprintf(prefix, sizeof prefix, "%s%d] %s: ", kLogPrefix, getpid(),
                                   names[static_cast<int>(level)]);
    // Also of strangers: no text can begin a line, or give the terminal an order.
    char printed[8192];
    iovec parts[] = {{prefix, static_cast<std::size_t>(size)},
                     {printed, printable(text, printed, sizeof printed)},
                     {const_cast<char*>("\n"), 1}};
    const WriteSignalsHeld held;
    ssize_t written = ::writev(STDERR_FILENO, parts, 3);
    (void)written;  // there is nowhere left to report to
}

}  // namespace libddp
