# Which gradient is in which bucket (ddp/plan.h, ddp/stats.h). Buckets count from 0.

"The number of buckets; -1 before `commit!`."
bucket_count(ctx::Context) = Int(ask(LibDDP.ddp_context_bucket_count, ctx.handle))

"The bucket that a parameter is in."
param_bucket(ctx::Context, parameter::Parameter) =
    Int(ask(LibDDP.ddp_context_param_bucket, ctx.handle, index_of(ctx, parameter)))

"Records the ready order again in the next synced step, and rebuilds the buckets in this order."
request_rebuild!(ctx::Context) = call(LibDDP.ddp_request_rebuild, ctx.handle)

"The bucket plan, as JSON."
plan(ctx::Context) = made_from(take_text, LibDDP.ddp_plan_save, Ptr{UInt8}, ctx.handle)

"Uses a saved plan."
adopt_plan!(ctx::Context, plan::AbstractString) = call(LibDDP.ddp_plan_adopt, ctx.handle, String(plan))

"Bytes of gradients in each bucket, now or when committed."
function bucket_sizes(ctx::Context; initial::Bool=false)
    sizes, count = zeros(UInt64, length(ctx.parameters)), Ref{Csize_t}(0)
    call(LibDDP.ddp_stats_bucket_sizes, ctx.handle, Int32(initial), sizes, Csize_t(length(sizes)), count)
    return Int.(sizes[1:count[]])
end

"The order in which gradients became ready when libddp last recorded it."
function ready_order(ctx::Context)
    order, count = zeros(Int32, length(ctx.parameters)), Ref{Csize_t}(0)
    call(LibDDP.ddp_stats_ready_order, ctx.handle, order, Csize_t(length(order)), count)
    return ctx.parameters[order[1:count[]] .+ 1]
end
