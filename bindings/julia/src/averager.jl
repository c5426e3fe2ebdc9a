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
    require_values(ctx, "Averager")
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
step!(averager::Averager) =
    in_context(() -> Int(number_from(LibDDP.ddp_averager_step, Int32, averager.handle)), averager)

"Calls f while the context of an averager or optimizer stays open."
function in_context(f::F, object) where {F}
    enter(object.context.handle)
    try
        return f()
    finally
        leave(object.context.handle)
    end
end

const OUTER_KINDS = (none=LibDDP.DDP_OUTER_NONE, sgd=LibDDP.DDP_OUTER_SGD, nesterov=LibDDP.DDP_OUTER_NESTEROV,
                     slowmo=LibDDP.DDP_OUTER_SLOWMO)

"""
    set_outer!(averager, kind=:nesterov; learning_rate=0.7, momentum=0.9, inner_learning_rate=0, fragments=1, delay=0, alpha=0,
               sent_dtype=0)

An outer optimizer, which steps after each average over all ranks: `:nesterov` (DiLoCo), `:slowmo`, `:sgd` or `:none`. With the
same kind again it changes the rates. `fragments`, `delay`, `alpha`: Streaming DiLoCo. Fragments of the model take turns; each is
mixed in `delay` steps after it left, with alpha as the weight of this rank's own values. `sent_dtype=DDP.BF16` or `DDP.U8`:
outer gradients travel in that type, with U8 as blocks of int8.
"""
function set_outer!(averager::Averager, kind::Symbol=:nesterov; learning_rate::Real=0.7, momentum::Real=0.9,
                    inner_learning_rate::Real=0, fragments::Integer=1, delay::Integer=0, alpha::Real=0, sent_dtype::Integer=0)
    haskey(OUTER_KINDS, kind) || throw(ArgumentError("kind: $kind is none of $(join(keys(OUTER_KINDS), ", "))"))
    settings = options(LibDDP.ddp_outer_options_init_sized, LibDDP.ddp_outer_options,
                       (kind=OUTER_KINDS[kind], learning_rate=Float64(learning_rate), momentum=Float64(momentum),
                        inner_learning_rate=Float64(inner_learning_rate), fragments=Int32(fragments), delay=Int64(delay),
                        alpha=Float64(alpha), sent_dtype=Int32(sent_dtype)))
    return in_context(() -> call(LibDDP.ddp_averager_set_outer, averager.handle, Ref(settings)), averager)
end

"The fragment of each parameter, counted from 0, in the order of registration; without it runs of parameters are fragments."
function set_fragments!(averager::Averager, fragment_of)
    list = Int32[fragment_of...]
    return in_context(() -> call(LibDDP.ddp_averager_set_fragments, averager.handle, list, Csize_t(length(list))), averager)
end

"Takes the model back to its last outer step: every rank has the outer parameters."
go_back!(averager::Averager) = in_context(() -> call(LibDDP.ddp_averager_go_back, averager.handle), averager)

"The number of counted steps and the state of the outer optimizer, in the safetensors format; the same on every rank."
function averager_state(averager::Averager)
    data, size = Ref{Ptr{Cvoid}}(C_NULL), Ref{Csize_t}(0)
    take() = take_bytes(data[], size[], LibDDP.ddp_free)
    return in_context(() -> call(LibDDP.ddp_averager_state_save, averager.handle, data, size; keep=take), averager)
end

"Loads a saved state. Set the outer optimizer first."
load_averager_state!(averager::Averager, state::Vector{UInt8}) =
    in_context(() -> call(LibDDP.ddp_averager_state_load, averager.handle, state, Csize_t(length(state))), averager)

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
