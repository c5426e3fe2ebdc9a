#include "rendezvous/store_engine.h"

#include <charconv>
#include <utility>

#include "util/error.h"
#include "util/printable.h"

namespace libddp {

bool StoreEngine::answers(std::int64_t within_ms) {
    try {
        perform(Request{}, within_ms);
        return true;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return false;
    }
}

std::int64_t StoreEngine::raise_fence(std::int64_t at_least) {
    for (std::string expected;;) {
        Outcome outcome = perform(
            Request{Op::kCompareSet, {"ddp/fence"}, {expected, std::to_string(at_least)}}, 0);
        if (outcome.code != DDP_OK) fail(outcome.code, outcome.message);
        if (outcome.values.size() != 1)
            fail(DDP_ERROR_INTERNAL, "the store answered with ", outcome.values.size(),
                 " values instead of one");
        const std::int64_t kept = read_fence(outcome.values.front());
        if (kept >= at_least) return kept;
        expected = std::move(outcome.values.front());
    }
}

std::int64_t read_fence(std::string_view text) {
    std::int64_t fence = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fence);
    if (error != std::errc() || end != text.data() + text.size() || fence < 0 || fence > kLastFence)
        fail(DDP_ERROR_IO, "the store has ", in_quotes(text),
             " where the number of the last roster should be");
    return fence;
}

}  // namespace libddp
