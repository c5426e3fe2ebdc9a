#include "ddp/vote.h"

#include "capi/context.h"
#include "core/step_votes.h"

using namespace libddp;

namespace {

constexpr std::uint32_t kNamedBits =
    DDP_VOTE_STOP | DDP_VOTE_CHECKPOINT | DDP_VOTE_SKIP | DDP_VOTE_NONFINITE;

StepVotes& votes_of(const Reducer& reducer) {
    StepVotes* const votes = reducer.parts().observers.votes;
    if (!votes) fail_call(DDP_ERROR_INVALID_STATE, "create the context with DDP_CONTEXT_VOTES");
    return *votes;
}

}  // namespace

ddp_status ddp_step_vote(ddp_context* context, uint32_t bits, ddp_error** error) {
    return guard<Waits::kRarely>(error, "ddp_step_vote", [&] {
        StepVotes& votes = votes_of(context_of(context).committed());
        const std::uint32_t unknown = bits & ~kNamedBits & (DDP_VOTE_USER - 1);
        if (unknown != 0)
            fail_call(DDP_ERROR_UNSUPPORTED, "bits has 0x", std::hex, unknown,
                      ", which has no name; bits of the program begin with DDP_VOTE_USER, 0x",
                      DDP_VOTE_USER);
        votes.cast(bits);
    });
}

ddp_status ddp_step_vote_level(ddp_context* context, int32_t level, ddp_error** error) {
    return guard<Waits::kRarely>(error, "ddp_step_vote_level", [&] {
        StepVotes& votes = votes_of(context_of(context).committed());
        if (level < 0 || level > StepVotes::kMostLevel)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "level is ", level, "; it must be from 0 to ",
                      StepVotes::kMostLevel);
        votes.cast_level(level);
    });
}

ddp_status ddp_step_votes(ddp_context* context, uint32_t* any, uint32_t* all, int32_t* level,
                          ddp_error** error) {
    return guard(error, "ddp_step_votes", [&] {
        const Reducer& reducer = context_of(context).committed();
        const StepVotes::Outcome& outcome = votes_of(reducer).outcome();
        reducer.require_idle();
        if (any) *any = outcome.any;
        if (all) *all = outcome.all;
        if (level) *level = outcome.level;
    });
}
