#include "core/step_exchange.h"

#include <vector>

namespace libddp {
namespace {

static_assert(sizeof(StepReport) == 24, "it travels as bytes: no padding");

[[noreturn]] void report_sync(Group& group, std::int32_t rank, const StepReport& one, std::int32_t other) {
    throw Error(group.break_everywhere({DDP_ERROR_MISMATCH,
                                        str("ddp_step_begin: rank ", rank, one.sync ? " syncs" : " does not sync",
                                            " this step and rank ", other, one.sync ? " does not" : " does",
                                            " (no_sync); every rank must give ddp_set_sync the same value for a step"),
                                        rank}));
}

}  // namespace

StepOutcome exchange_step(Group& group, const StepReport& mine) {
    std::vector<StepReport> all(static_cast<std::size_t>(group.world()));
    const ScopedPurpose scope(Purpose::kStepBegin);
    group.run({DDP_COLLECTIVE_ALLGATHER, &mine, all.data(), sizeof mine, DDP_U8});
    StepOutcome outcome;
    std::int64_t most_steps = -1;
    for (std::int32_t rank = 0; rank < group.world(); ++rank) {
        const StepReport& report = all[static_cast<std::size_t>(rank)];
        if (report.own_steps >= most_steps) {
            most_steps = report.own_steps;
            outcome.last_to_join = rank;
        }
        if (report.joined) {
            if (outcome.first_joined < 0) outcome.first_joined = rank;
            continue;
        }
        if (outcome.present++ == 0) {
            outcome.first_present = rank;
            outcome.sync = report.sync != 0;
        }
        if ((report.sync != 0) != outcome.sync) report_sync(group, rank, report, outcome.first_present);
        outcome.total_weight += report.weight;
    }
    return outcome;
}

}  // namespace libddp
