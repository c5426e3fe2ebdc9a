# Averaging of models that are trained apart for some steps (ddp/averager.h).

"""
    Averager(ctx, periods; group_sizes=nothing, warmup_steps=0)

Averages the parameters every `periods` steps; with several periods, the i-th over group_sizes[i] ranks. Call
`step!(averager)` in each step. `averager.steps` is the number of counted steps; set it from a checkpoint.
"""
struct Averager
    handle::Handle
    context::Context
end

function Averager(ctx::Context, periods; group_sizes=nothing, warmup_steps::Integer=0)
    every = periods isa Integer ? Int64[periods] : Int64[periods...]
    sizes = group_sizes === nothing ? Ptr{Int32}(C_NULL) : Int32[group_sizes...]
    sizes isa Ptr || length(sizes) == length(every) ||
        throw(ArgumentError("group_sizes: there are $(length(sizes)), but $(length(every)) periods"))
    made = Ref{Ptr{ddp_averager}}()
    function make()
        handle = Handle(AVERAGER, made[]; kept=Any[ctx])
        push!(ctx.handle.dependents, handle)
        return Averager(handle, ctx)
    end
    return call(LibDDP.ddp_averager_create, ctx.handle, every, sizes, Csize_t(length(every)), Int64(warmup_steps), made;
                keep=make)
end

"Counts a step, and averages if it is due. Returns over how many ranks it averaged; 0 if it did not."
function step!(averager::Averager)
    enter(averager.context.handle)
    try
        return Int(number_from(LibDDP.ddp_averager_step, Int32, averager.handle))
    finally
        leave(averager.context.handle)
    end
end

Base.close(averager::Averager) = close(averager.handle)
Base.isopen(averager::Averager) = isopen(averager.handle)
Base.propertynames(::Averager) = (:steps,)
Base.getproperty(averager::Averager, name::Symbol) =
    name === :steps ? Int(ask(LibDDP.ddp_averager_get_step, getfield(averager, :handle))) : getfield(averager, name)
function Base.setproperty!(averager::Averager, name::Symbol, value)
    name === :steps || throw(ArgumentError("an Averager has nothing to set but steps, not $name"))
    call(LibDDP.ddp_averager_set_step, averager.handle, Int64(value))
    return value
end
