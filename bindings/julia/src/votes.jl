# Votes: a few bits of each rank that travel with a step (ddp/vote.h).

# Bits of a vote, as `vote!` and `votes` name them.
const VOTES = (stop=LibDDP.DDP_VOTE_STOP, checkpoint=LibDDP.DDP_VOTE_CHECKPOINT, skip=LibDDP.DDP_VOTE_SKIP,
               nonfinite=LibDDP.DDP_VOTE_NONFINITE)

function vote_bit(vote::Symbol)
    haskey(VOTES, vote) || throw(ArgumentError("vote: unknown vote :$vote; there are $(join((":$each" for each in keys(VOTES)), ", ")), and numbers"))
    return UInt32(VOTES[vote])
end
vote_bit(vote::Integer) = UInt32(vote)

"""
    vote!(ctx, votes...; level=0)

Casts votes of this rank, on any task and at any time: `:stop`, `:checkpoint`, `:skip`, `:nonfinite`, or bits of the program's own
from `DDP.VOTE_USER` on. They count in one step, the same on all ranks: the first synced one whose last gradient comes after the call.
Of `level`, from 0 to 32, the greatest of all ranks counts. Needs a context with `votes=true`.
"""
function vote!(ctx::Context, votes::Union{Symbol,Integer}...; level::Integer=0)
    call(LibDDP.ddp_step_vote, ctx.handle, reduce(|, (vote_bit(each) for each in votes); init=UInt32(0)))
    level == 0 || call(LibDDP.ddp_step_vote_level, ctx.handle, Int32(level))
    return nothing
end

"The first bit that belongs to the program; the 15 above it do, too."
const VOTE_USER = UInt32(LibDDP.DDP_VOTE_USER)

"The votes of a step: `:stop in votes(ctx)` says whether any rank has cast it, and `votes(ctx).all` has the bits that all have."
struct Votes
    any::UInt32
    all::UInt32
    level::Int
end
Base.in(vote::Union{Symbol,Integer}, votes::Votes) = votes.any & vote_bit(vote) != 0

"The votes of the last step, after `finalize!`; the same on every rank. There are none after an unsynced step."
function votes(ctx::Context)
    any, all, level = Ref(UInt32(0)), Ref(UInt32(0)), Ref(Int32(0))
    call(LibDDP.ddp_step_votes, ctx.handle, any, all, level)
    return Votes(any[], all[], level[])
end
