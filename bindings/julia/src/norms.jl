# Norms of gradients, and clipping by them (ddp/norm.h).

"""
    track_grad_norm!(ctx, p=2, parameters=ctx.parameters) -> norm

Before `commit!`, and alike on all ranks: each synced step has the p-norm (1, 2 or Inf) of the reduced gradients of these parameters.
Returns the norm's number, from 0.
"""
function track_grad_norm!(ctx::Context, p::Real=2, parameters=ctx.parameters)
    isempty(parameters) && throw(ArgumentError("parameters: there are none"))
    list = indices_of(ctx, parameters)
    return Int(number_from(LibDDP.ddp_track_grad_norm, Int32, ctx.handle, Float64(p), list, Csize_t(length(list))))
end

"The norm in the last step, before clipping; the same on every rank. After `finalize!`."
grad_norm(ctx::Context, norm::Integer) = number_from(LibDDP.ddp_grad_norm, Float64, ctx.handle, Int32(norm))

"""
    clip_grad_norm!(ctx, norm, max_norm)

Multiplies the norm's gradients by min(1, max_norm / (norm + 1e-6)), on all ranks. Returns the norm before. If that is not finite, it is
an error on all ranks, and nothing is clipped.
"""
clip_grad_norm!(ctx::Context, norm::Integer, max_norm::Real) =
    number_from(LibDDP.ddp_clip_grad_norm, Float64, ctx.handle, Int32(norm), Float64(max_norm))

"""
    clip_factor(ctx, norm, max_norm)

The number by which `clip_grad_norm!` would multiply, for `step!(optimizer; scale)`, which saves a pass over the gradients. Changes nothing.
The errors are those of `clip_grad_norm!`.
"""
clip_factor(ctx::Context, norm::Integer, max_norm::Real) =
    number_from(LibDDP.ddp_clip_factor, Float64, ctx.handle, Int32(norm), Float64(max_norm))
