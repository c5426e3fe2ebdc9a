// A thread that looks while operations end counts no failed operation as one that has ended well,
// and misses none that ended well before it looked. When all have ended, the number given is told.
//
// weaken lib/comm/operation_counts.h: ended_.fetch_add(1, std::memory_order_acq_rel) => ended_.fetch_add(1, std::memory_order_relaxed)
// weaken lib/comm/operation_counts.h: ended = ended_.load(std::memory_order_acquire) => ended = ended_.load(std::memory_order_relaxed)
#include "checker.h"
#include "comm/operation_counts.h"

namespace libddp {
namespace {

OperationCounts counts;
int result = 0;

void* succeed(void*) {
    counts.give();
    result = 1;
    counts.end(true);
    return nullptr;
}

void* fail(void*) {
    counts.give();
    counts.end(false);
    return nullptr;
}

void* look(void*) {
    const std::int64_t successes = counts.successes();
    ALWAYS(successes == 1 || successes == 2);
    ALWAYS(counts.successes_expected() <= 3);
    if (counts.given_if_all_ended() != 3) return nullptr;
    ALWAYS(counts.successes() == 2);
    ALWAYS(counts.successes_expected() == 2);
    ALWAYS(result == 1);
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    counts.give();
    counts.end(true);
    model::start(succeed, 0);
    model::start(fail, 0);
    model::start(look, 0);
    return 0;
}
