#include "core/together.h"

#include "util/error.h"

namespace libddp {
namespace {

struct PartOutcome {
    ddp_status code = DDP_OK;
    std::int32_t param = -1;
    char message[1016] = {};
};
static_assert(sizeof(PartOutcome) == 1024, "it travels as bytes: no padding");

}  // namespace

void Together::run(const std::function<void()>& part) {
    PartOutcome mine;
    try {
        part();
    } catch (...) {
        const ErrorInfo error = caught();
        mine.code = error.code;
        mine.param = error.param;
        // A cut character is printed as bytes.
        error.message.copy(mine.message, sizeof mine.message - 1);
    }
    const std::vector<PartOutcome> all = gather(std::vector{mine});
    const auto failed = std::find_if(all.begin(), all.end(),
                                     [](const PartOutcome& one) { return one.code != DDP_OK; });
    if (failed == all.end()) return;
    all_know_ = true;
    let_all_hear();
    const auto rank = static_cast<std::int32_t>(failed - all.begin());
    throw CallError({failed->code,
                     str(all.size() > 1 ? str("rank ", rank, ": ") : "", failed->message), rank,
                     failed->param});
}

void Together::let_all_hear() {
    try {
        if (group_.world() > 1) group_.run({DDP_COLLECTIVE_BARRIER}, tag_);
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_INTERRUPTED) throw;
    }
}

}  // namespace libddp
