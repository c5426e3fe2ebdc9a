# Optimizers for programs that have none (ddp/optimizer.h).

"""
    Optimizer(ctx, name; options...)

"sgd", "adamw", "lamb" or "muon" for all parameters of a committed context, which are on the CPU. On all ranks, with the same options:
`Optimizer(ctx, "adamw"; lr=3e-4, weight_decay=0.1)`. ddp/optimizer.h has those of each optimizer and their defaults. In each step
`step!(optimizer)` follows `finalize!`. With `shard=true` each rank updates its own pieces, and has the state of those; `publish!` follows.
"""
struct Optimizer
    handle::Handle
    context::Context
end

function Optimizer(ctx::Context, name::AbstractString; options...)
    require_values(ctx, "Optimizer")
    list = join(("$key=$(Float64(value))" for (key, value) in options), ",")
    made = Ref{Ptr{ddp_optimizer}}()
    make() = Optimizer(Handle(OPTIMIZER, made[]; kept=Any[ctx]), ctx)
    return call(LibDDP.ddp_optimizer_create, ctx.handle, String(name), list, made; keep=make)
end

"""
    set_option!(optimizer, key, value)
    set_option!(optimizer, parameter, key, value)

Changes an option of all parameters, or of one, from the next step on: `set_option!(optimizer, :lr, 1e-4)`. Alike on all ranks.
"""
set_option!(optimizer::Optimizer, key, value::Real) = set_option!(optimizer, Int32(-1), key, value)
set_option!(optimizer::Optimizer, parameter::Parameter, key, value::Real) =
    set_option!(optimizer, index_of(optimizer.context, parameter), key, value)
set_option!(optimizer::Optimizer, index::Int32, key, value::Real) =
    in_context(() -> call(LibDDP.ddp_optimizer_set, optimizer.handle, index, String(key), Float64(value)), optimizer)

"""
    step!(optimizer; scale=1)

After `finalize!` and on all ranks: updates the values from the means, each multiplied by `scale`, such as 1 / the scale of the loss.
"""
step!(optimizer::Optimizer; scale::Real=1) =
    in_context(() -> call(LibDDP.ddp_optimizer_step, optimizer.handle, Float64(scale)), optimizer)

"""
    in_step!(optimizer; scale=1)

With `shard=true`: from the next step on, updates each bucket in the step as soon as its means are there, and sends the values. `step!`
and `publish!` are not called then; `wait_value` gives the new values.
"""
in_step!(optimizer::Optimizer; scale::Real=1) =
    in_context(() -> call(LibDDP.ddp_optimizer_in_step, optimizer.handle, Float64(scale)), optimizer)

"""
    optimizer_state(optimizer) -> Vector{ShardArray}

This rank's state, in the order of parameters, for `save_shards` and `load_shards!`. The keys are "momentum_buffer", "exp_avg",
"exp_avg_sq", "master" and "step", which has one number: the count of updates. The program may read and write the arrays between steps,
and keep them longer than the optimizer.
"""
function optimizer_state(optimizer::Optimizer)
    ctx = optimizer.context
    divided = Set(piece.parameter.index for piece in pieces(ctx) if !piece.replicated)
    enter(optimizer.handle)  # not freed before the arrays keep it
    try
        return [state_of(optimizer, Int32(i), divided) for i in 0:(ask(LibDDP.ddp_optimizer_state_count, optimizer.handle) - 1)]
    finally
        leave(optimizer.handle)
    end
end

function state_of(optimizer::Optimizer, index::Int32, divided)
    told = Ref{LibDDP.ddp_optimizer_state}()
    GC.@preserve told begin
        unsafe_store!(Ptr{Csize_t}(raw(told)), sizeof(LibDDP.ddp_optimizer_state))
        call(LibDDP.ddp_optimizer_state_get, optimizer.handle, index, told)
    end
    found = told[]
    key = unsafe_string(found.name)
    data = array_over(found.data, found.dtype, (Int(found.count),), optimizer.handle, Device(found.device.kind, found.device.index))
    replicated = key == "step" || !(found.param in divided)
    return ShardArray(key, optimizer.context.parameters[found.param + 1], Int(found.first), replicated, data)
end

"Frees it, once no array of its state is left. The context stays open."
Base.close(optimizer::Optimizer) = close(optimizer.handle)
Base.isopen(optimizer::Optimizer) = isopen(optimizer.handle)
