# Participation in a step (ddp/participation.h).

indices_of(ctx::Context, parameters) = Int32[index_of(ctx, each) for each in parameters]

"These gradients will not come in this step."
function mark_unused!(ctx::Context, parameters)
    list = indices_of(ctx, parameters)
    return call(LibDDP.ddp_mark_unused, ctx.handle, list, Csize_t(length(list)))
end

"Whether any rank used the parameter in the last synced step."
param_used(ctx::Context, parameter::Parameter) =
    number_from(LibDDP.ddp_param_used, Int32, ctx.handle, index_of(ctx, parameter)) == 1

"Freezes parameters, or thaws them."
function set_frozen!(ctx::Context, parameters, frozen::Bool=true)
    list = indices_of(ctx, parameters)
    return call(LibDDP.ddp_set_frozen, ctx.handle, list, Csize_t(length(list)), Int32(frozen))
end

"These parameters take no part in the next step. authority: the rank whose choice counts."
function skip!(ctx::Context, parameters; authority::Integer=-1)
    list = indices_of(ctx, parameters)
    return call(LibDDP.ddp_skip_params, ctx.handle, list, Csize_t(length(list)), Int32(authority))
end

"Whether the parameter is skipped in the step under way or in the next one."
skipped(ctx::Context, parameter::Parameter) = ask(LibDDP.ddp_skipped, ctx.handle, index_of(ctx, parameter)) == 1

"This rank's weight in the weighted mean: the samples of its batch."
set_weight!(ctx::Context, weight::Real) = call(LibDDP.ddp_set_weight, ctx.handle, Float64(weight))

"""
    share_batch!(ctx, samples; multiple=1, most=0)

Before `commit!`: each step has a global batch of so many samples, of which a fast rank takes more than a slow one (ddp/batch_share.h).
Each share is a multiple of `multiple`. `most`: the samples that fit this rank's memory; 0: no bound. Needs a context with
`reduction=:weighted_mean`.
"""
share_batch!(ctx::Context, samples::Integer; multiple::Integer=1, most::Integer=0) =
    call(LibDDP.ddp_share_batch, ctx.handle, Int64(samples), Int64(multiple), Int64(most))

"""
    batch_share(ctx)

This rank's samples of the global batch, counted from 1, in the step that has begun or, between steps, in the next one. Give their number to
`set_weight!` before each `step_begin!`.
"""
function batch_share(ctx::Context)
    first, last = Ref(Int64(0)), Ref(Int64(0))
    call(LibDDP.ddp_batch_share, ctx.handle, first, last)
    return first[]+1:last[]
end

"""
    batch_time!(ctx, seconds)

The time that this rank itself has computed in the last step, instead of what libddp measures between `step_begin!` and `finalize!`.
With parameters on a device call it after each step.
"""
batch_time!(ctx::Context, seconds::Real) = call(LibDDP.ddp_batch_time, ctx.handle, round(Int64, seconds * 1e9))

"Call it instead of `step_begin!` when this rank has no more inputs. It takes part until all ranks have joined."
function join!(ctx::Context)
    require_values(ctx, "join!")
    return ending_step(LibDDP.ddp_join, ctx)
end
