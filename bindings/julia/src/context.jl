# A model's parameters, and the averaging of their gradients over ranks (ddp/context.h).

"""
A parameter: its name, size (`dims`), element type (`dtype`, a DDP.F32 or the like) and that of its gradient (`grad_dtype`), `data` and
`grad` as they were registered, and `index`, from 0, by which errors name it; `device`: where its gradient lies.
"""
mutable struct Parameter
    name::String
    index::Int32
    dims::Dims
    dtype::Int32
    grad_dtype::Int32
    data::Any
    grad::Any
    device::Device
    owner::Handle
end
Base.show(io::IO, parameter::Parameter) = print(io, "Parameter($(parameter.index), $(repr(parameter.name)))")

"""
    Context(group; bucket_cap, first_bucket_cap, bucket_caps, reduction, rebuild_interval, rebuild, initial_broadcast,
            broadcast_buffers, find_unused, static_graph, keep_local_unused, skip_unused_buckets, join, divide_by_present,
            stop_at_first_join, consensus_order, accumulate, check, check_interval, refuse_nonfinite, skip_nonfinite, verify_interval,
            verify_buffers, autotune, shard, votes)
    Context(f, group; ...)         closes it after f(ctx)

Register parameters, commit, and in each step announce gradients and finalize. The arguments, the same on every rank,
are those of ddp_context_options. Caps are in bytes; `reduction` is :mean, :sum or :weighted_mean. `check`: finds
mistakes that are otherwise silent (DDP_CONTEXT_CHECK; DDP_DEBUG=check does the same). `refuse_nonfinite`,
`skip_nonfinite`: NaN and infinity in a gradient are an error of all ranks (DDP_ERROR_NONFINITE), which breaks the context or
skips the step. `verify_interval`: every so many synced steps ranks compare parameters (ddp/check.h). `autotune`: libddp tries
other bucket caps in the first steps and keeps the fastest (DDP_CONTEXT_AUTOTUNE). `shard`: each rank updates a share of the
parameters (ddp/shard.h): `DDP.pieces` says which, and `publish!` sends the new values to the others.
`votes`: bits of each rank travel with each step (ddp/vote.h): `vote!` casts some, and `votes` has those of all ranks. `ctx.parameters`: the registered parameters.
"""
mutable struct Context
    handle::Handle
    parameters::Vector{Parameter}
    buffers::Vector{Any}
    functions::Dict{Ptr{Cvoid},Any}  # of callbacks, by their cells
    layout::Union{Handle,Nothing}    # of `generation`, for arrays over it
    generation::Int64
    results::Dict{Int,Any}           # of set_buffer!
    streams::Dict{Device,Any}        # of set_stream!
    in_place::Vector{Any}            # gradients that are their own views
    hook_step::Int64                 # the step of the bucket that a hook was lent last
    first_values::Bool               # of parameters: the program may keep the others elsewhere
end

function Context(group::Group; bucket_cap::Integer=0, first_bucket_cap::Integer=0, bucket_caps=(),
                 reduction::Symbol=:mean, rebuild_interval::Integer=0, rebuild::Bool=true,
                 initial_broadcast::Bool=true, broadcast_buffers::Bool=true, find_unused::Bool=false,
                 static_graph::Bool=false, keep_local_unused::Bool=false, skip_unused_buckets::Bool=false,
                 join::Bool=false, divide_by_present::Bool=false, stop_at_first_join::Bool=false,
                 consensus_order::Bool=false, accumulate::Bool=false, check::Bool=false, check_interval::Integer=0,
                 refuse_nonfinite::Bool=false, skip_nonfinite::Bool=false, verify_interval::Integer=0,
                 verify_buffers::Bool=false, autotune::Bool=false, shard::Bool=false, votes::Bool=false)
    sweep()
    flags = !rebuild * LibDDP.DDP_CONTEXT_NO_REBUILD |
            !initial_broadcast * LibDDP.DDP_CONTEXT_NO_INITIAL_BROADCAST |
            !broadcast_buffers * LibDDP.DDP_CONTEXT_NO_BUFFER_BROADCAST |
            find_unused * LibDDP.DDP_CONTEXT_FIND_UNUSED |
            static_graph * LibDDP.DDP_CONTEXT_STATIC_GRAPH |
            keep_local_unused * LibDDP.DDP_CONTEXT_KEEP_LOCAL_UNUSED |
            skip_unused_buckets * LibDDP.DDP_CONTEXT_SKIP_UNUSED_BUCKETS |
            join * LibDDP.DDP_CONTEXT_JOIN |
            divide_by_present * LibDDP.DDP_CONTEXT_DIVIDE_BY_PRESENT |
            stop_at_first_join * LibDDP.DDP_CONTEXT_STOP_AT_FIRST_JOIN |
            consensus_order * LibDDP.DDP_CONTEXT_CONSENSUS_ORDER | accumulate * LibDDP.DDP_CONTEXT_ACCUMULATE |
            check * LibDDP.DDP_CONTEXT_CHECK |
            refuse_nonfinite * LibDDP.DDP_CONTEXT_REFUSE_NONFINITE |
            skip_nonfinite * LibDDP.DDP_CONTEXT_SKIP_NONFINITE |
            verify_buffers * LibDDP.DDP_CONTEXT_VERIFY_BUFFERS |
            autotune * LibDDP.DDP_CONTEXT_AUTOTUNE | shard * LibDDP.DDP_CONTEXT_SHARD |
            votes * LibDDP.DDP_CONTEXT_VOTES
    caps = UInt64[bucket_caps...]
    made = Ref{Ptr{ddp_context}}()
    GC.@preserve caps begin
        settings = options(LibDDP.ddp_context_options_init_sized, LibDDP.ddp_context_options,
                           (bucket_cap_bytes=UInt64(bucket_cap), first_bucket_cap_bytes=UInt64(first_bucket_cap),
                            bucket_caps=isempty(caps) ? Ptr{UInt64}(C_NULL) : pointer(caps),
                            bucket_cap_count=UInt64(length(caps)), reduction=reduction_of(reduction),
                            rebuild_interval=Int64(rebuild_interval), check_interval=Int64(check_interval),
                            verify_interval=Int64(verify_interval),
                            flags=flags))
        return call(LibDDP.ddp_context_create, group.handle, Ref(settings), made; keep=() -> new_context(made[]))
    end
end
Context(f::Function, group::Group; keywords...) = closing(f, Context(group; keywords...))

new_context(pointer::Ptr{ddp_context}) = Context(Handle(CONTEXT, pointer), Parameter[], [], Dict{Ptr{Cvoid},Any}(), nothing,
                                                 -1, Dict{Int,Any}(), Dict{Device,Any}(), [], -1, false)

"Refuses `what`, which uses values of parameters, where the context has none."
require_values(ctx::Context, what) = ctx.first_values && refuse_first_values(what)
refuse_first_values(what) =
    throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE, "$what: a DataParallel may have the first values of the parameters only, as the " *
                   "program keeps the parameters itself. Use collectives of the group on them, or a Context with arrays that the " *
                   "program updates in place"))

function reduction_of(name::Symbol)
    name === :mean && return LibDDP.DDP_REDUCTION_MEAN
    name === :sum && return LibDDP.DDP_REDUCTION_SUM
    name === :weighted_mean && return LibDDP.DDP_REDUCTION_WEIGHTED_MEAN
    throw(ArgumentError("reduction: there is no $name; there are :mean, :sum and :weighted_mean"))
end

"Frees the context. Never waits for other ranks. Arrays over views stay readable."
function Base.close(ctx::Context)
    end_step(ctx.handle, false)
    close(ctx.handle)
    ctx.layout, ctx.generation = nothing, -1
    return nothing
end
Base.isopen(ctx::Context) = isopen(ctx.handle)
Base.show(io::IO, ctx::Context) =
    print(io, isopen(ctx) ? "Context($(length(ctx.parameters)) parameters)" : "Context(closed)")

# REGISTRATION

"""
    register!(ctx, name, data=nothing, grad=nothing; size, dtype, ignored, delayed, sparse, factored, in_place, uses, device,
              grad_dtype) -> Parameter

Adds a parameter, in the order of the forward pass. `data`: its value, an array that `commit!` overwrites with rank 0's; nothing: not
sent. `grad`: the array in which its gradient will be, which `finalize!` overwrites with the mean; nothing: the gradient lives in its
bucket (`grad_view`), or is copied there (`put!`). Without data and grad, `size` says how large it is, and `dtype` of what type
(Float32), `device` where (`DDP.cuda(0)`; the CPU); `dtype=DDP.BF16` reads arrays of UInt16 as bf16. `in_place`: grad is reduced where
it lies, and not copied (ddp/in_place.h). `grad_dtype`: the type of the gradient, where it is another one than that of the value:
`Float32` for gradients of bf16 values, which are then summed in f32. Registered vectors cannot be resized any more.

An array of size (n, m) is to libddp, and to ranks in other languages, the row-major one of shape (m, n): docs/julia.md.
"""
function register!(ctx::Context, name::AbstractString, data=nothing, grad=nothing;
                   size::Union{Dims,Integer,Nothing}=nothing, dtype=nothing, ignored::Bool=false, delayed::Bool=false,
                   sparse::Bool=false, factored::Bool=false, in_place::Bool=false, uses::Integer=1,
                   device::Union{Device,Nothing}=nothing, grad_dtype=nothing)
    flags = ignored * LibDDP.DDP_PARAM_IGNORED | delayed * LibDDP.DDP_PARAM_DELAYED | sparse * LibDDP.DDP_PARAM_SPARSE |
            factored * LibDDP.DDP_PARAM_FACTORED | in_place * LibDDP.DDP_PARAM_IN_PLACE
    return add!(LibDDP.ddp_register_param, ctx, name, data, grad, size, dtype, grad_dtype, flags, uses, device) do first, dims, codes, place
        push!(ctx.parameters, Parameter(name, first, dims, codes..., data, grad, place, ctx.handle))
        return ctx.parameters[end]
    end
end

"""
    register_slices!(ctx, name, data=nothing, grad=nothing; size, dtype, delayed, in_place, uses, device, grad_dtype)
        -> Vector{Parameter}

Adds the n slices of an array of size (..., n), such as a weight that all layers keep in one array: each is a parameter of its own.
The i-th, from 1, is called "name[i-1]", as in other languages. The arguments are those of `register!`.
"""
function register_slices!(ctx::Context, name::AbstractString, data=nothing, grad=nothing;
                          size::Union{Dims,Integer,Nothing}=nothing, dtype=nothing, delayed::Bool=false,
                          in_place::Bool=false, uses::Integer=1, device::Union{Device,Nothing}=nothing, grad_dtype=nothing)
    flags = delayed * LibDDP.DDP_PARAM_DELAYED | in_place * LibDDP.DDP_PARAM_IN_PLACE
    slice(array, i) = array === nothing ? nothing : selectdim(array, ndims(array), i)
    return add!(LibDDP.ddp_register_slices, ctx, name, data, grad, size, dtype, grad_dtype, flags, uses, device) do first, dims, codes, place
        slices = [Parameter("$name[$(i - 1)]", first + Int32(i - 1), dims[1:end-1], codes..., slice(data, i), slice(grad, i),
                            place, ctx.handle) for i in 1:dims[end]]
        append!(ctx.parameters, slices)
        return slices
    end
end

"Describes it, adds it with this function of C, and returns what f makes of the first index, size, types and device."
function add!(f, register, ctx::Context, name, data, grad, size, dtype, grad_dtype, flags, uses, device)
    values = data === nothing ? nothing : memory_of("$name: data", data, dtype; on_gpu=true)
    grads = grad === nothing ? nothing : memory_of("$name: grad", grad, something(grad_dtype, dtype, Some(nothing)); on_gpu=true)
    known = something(values, grads, Some(nothing))
    known === nothing && size === nothing && throw(ArgumentError("$name: say what it is, with data, grad or size"))
    dims = size === nothing ? known.dims : Dims(Tuple(size))
    code = known !== nothing ? known.dtype : dtype_of("dtype", something(dtype, Float32))
    codes = (code, grad_dtype === nothing ? code : dtype_of("grad_dtype", grad_dtype))
    values === nothing || same_layout("$name: data", values, dims, code)
    grads === nothing || same_layout("$name: grad", grads, dims, codes[2])
    place = one_place(name, device, (memory.device for memory in (values, grads) if memory !== nothing)...)
    index = Ref{Int32}()
    flags & LibDDP.DDP_PARAM_IN_PLACE != 0 && grads !== nothing && push!(ctx.in_place, grads.root)
    return describe(ctx, String(name), dims, codes, values, grads, UInt32(flags), UInt32(uses), place) do description
        call(register, ctx.handle, description, index; keep=() -> f(index[], dims, codes, place))
    end
end

function one_place(name, given...)
    places = unique(filter(!isnothing, collect(given)))
    length(places) > 1 && throw(ArgumentError("$name: data, grad and device are on $(join(places, " and ")); they must be in one place"))
    return isempty(places) ? CPU : places[1]
end

"Adds state that is not trained, such as running means: rank 0's is sent to every rank."
function register_buffer!(ctx::Context, name::AbstractString, data; dtype=nothing)
    values = memory_of("$name: data", data, dtype; on_gpu=true)
    describe(ctx, String(name), values.dims, (values.dtype, Int32(0)), values, nothing, UInt32(0), UInt32(0),
             values.device) do description
        call(LibDDP.ddp_register_buffer, ctx.handle, description; keep=() -> push!(ctx.buffers, data))
    end
    return nothing
end

"Gives f the description of a parameter. The last dimension of Julia's is the first of C's, which changes slowest."
function describe(f, ctx::Context, name::String, dims::Dims, dtypes::NTuple{2,Int32}, values, grads, flags::UInt32, uses::UInt32,
                  place::Device)
    shape = Int64[reverse(dims)...]
    roots = (held(values === nothing ? nothing : values.root), held(grads === nothing ? nothing : grads.root))
    push!(ctx.handle.kept, roots)
    GC.@preserve name shape roots begin
        description = options(LibDDP.ddp_param_desc_init_sized, LibDDP.ddp_param_desc,
                              (name=text("name", name), shape=isempty(shape) ? Ptr{Int64}(C_NULL) : pointer(shape),
                               ndim=Int32(length(shape)), dtype=dtypes[1], grad_dtype=dtypes[2], data=values === nothing ? C_NULL : values.pointer,
                               grad=grads === nothing ? C_NULL : grads.pointer, flags=flags, uses=uses,
                               device=LibDDP.ddp_device(place.kind, place.index)))
        return f(Ref(description))
    end
end

"Ends registration: ranks compare their parameters, and rank 0's values go to everyone."
commit!(ctx::Context) = call(LibDDP.ddp_commit, ctx.handle)

# A STEP

"Starts a step, before the forward pass. Views may move here."
function step_begin!(ctx::Context)
    sweep()
    return call(LibDDP.ddp_step_begin, ctx.handle)
end

@noinline foreign(parameter::Parameter) =
    throw(ArgumentError("parameter: $(repr(parameter.name)) is of another context"))

"The index of a parameter of this context."
@inline function index_of(ctx::Context, parameter::Parameter)
    parameter.owner === ctx.handle || foreign(parameter)
    return parameter.index
end

"This step's gradient of the parameter is complete. A step calls it most often: about as fast as in C."
function grad_ready(ctx::Context, parameter::Parameter)
    index, handle = index_of(ctx, parameter), ctx.handle
    error = Ref{Ptr{ddp_error}}(C_NULL)
    Base.sigatomic_begin()
    pointer = enter(handle)
    status = LibDDP.ddp_grad_ready(pointer, index, error)
    leave(handle)
    was_interrupted() && throw_interrupt(status, error[])
    status == 0 || fail(status, error[], handle)
    Base.sigatomic_end()
    return nothing
end

"""
    finalize!(ctx)

The end of the backward pass: waits until every gradient is the mean over ranks. It throws an exception of a hook.
"""
function finalize!(ctx::Context)
    sweep()
    return ending_step(LibDDP.ddp_finalize, ctx)
end

function ending_step(f::F, ctx::Context, args...) where {F}
    well = false
    try
        call(f, ctx.handle, args...)
        well = true
    finally
        end_step(ctx.handle, well)
    end
end

"The same without waiting: `wait_param` and `finalize!` follow."
finalize_async!(ctx::Context) = call(LibDDP.ddp_finalize_async, ctx.handle)

"After `finalize_async!`: waits until this gradient is final."
wait_param(ctx::Context, parameter::Parameter) = call(LibDDP.ddp_wait_param, ctx.handle, index_of(ctx, parameter))

"Ends a step that went wrong, on every rank; nothing is written back."
discard!(ctx::Context) = ending_step(LibDDP.ddp_step_discard, ctx)

"Whether the following steps communicate."
function set_sync!(ctx::Context, sync::Bool)
    sync || !ctx.first_values ||
        throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE, "no_sync: mean_gradients that does not communicate gives this rank's own " *
                       "gradients, and they are not in the next mean. Add gradients up, and give mean_gradients the sum"))
    return call(LibDDP.ddp_set_sync, ctx.handle, Int32(sync))
end

"""
    no_sync(ctx) do ... end

Steps inside do not communicate. The program adds gradients up, in its own arrays or in views.
"""
function no_sync(f, ctx::Context)
    set_sync!(ctx, false)
    try
        return f()
    finally
        set_sync!(ctx, true)
    end
end

# ON GPUS. A stream is what `DDP.stream_of` takes: a CuStream of CUDA.jl's, a number, `nothing` for the legacy default stream.

"""
    set_stream!(ctx, device, stream)

Sets the stream of this device (`DDP.cuda(0)`) for calls that take none: `commit!`, `step_begin!`, `grad_ready`. At
first it is the legacy default stream.
"""
function set_stream!(ctx::Context, device::Device, stream)
    call(LibDDP.ddp_set_stream, ctx.handle, device.kind, device.index, stream_of(stream);
         keep=() -> ctx.streams[device] = stream)
    return nothing
end

"`grad_ready` for a parameter on a GPU: its gradient is complete when the stream reaches this point."
grad_ready_on(ctx::Context, parameter::Parameter, stream) =
    call(LibDDP.ddp_grad_ready_on, ctx.handle, index_of(ctx, parameter), stream_of(stream))

"""
    put_on!(ctx, parameter, gradient, stream)

`put!` for a parameter on a GPU: copies a gradient from an array there, in the order of the stream, and announces it. The array may be
written again on the stream afterwards.
"""
function put_on!(ctx::Context, parameter::Parameter, gradient::AbstractArray, stream)
    given = alike("$(parameter.name): gradient", parameter, gradient)
    GC.@preserve gradient call(LibDDP.ddp_put_on, ctx.handle, index_of(ctx, parameter), given.pointer, UInt32(0), stream_of(stream))
    return nothing
end

"""
    get_on!(ctx, parameter, array, stream)

Copies a gradient from its place to an array on the same GPU, in the order of the stream, between steps: after `finalize_on!` the mean.
"""
function get_on!(ctx::Context, parameter::Parameter, array::AbstractArray, stream)
    taken = alike("$(parameter.name): array", parameter, array)
    GC.@preserve array call(LibDDP.ddp_get_on, ctx.handle, index_of(ctx, parameter), taken.pointer, stream_of(stream))
    return array
end

function alike(what, parameter, array)
    size(array) == parameter.dims ||
        throw(ArgumentError("$what: its size is $(size(array)), but $(parameter.dims) is expected"))
    return memory_of(what, array, parameter.grad_dtype; on_gpu=true)
end

"`finalize!` that does not wait for the GPU: what is enqueued on the stream afterwards sees the mean."
function finalize_on!(ctx::Context, stream)
    sweep()
    return ending_step(LibDDP.ddp_finalize_on, ctx, stream_of(stream))
end

"The same for parameters on several GPUs, with the streams of `set_stream!`."
function finalize_enqueue!(ctx::Context)
    sweep()
    return ending_step(LibDDP.ddp_finalize_enqueue, ctx)
end

"""
    wait_param_on(ctx, parameter, stream)

`wait_param` that does not wait for the GPU: what is enqueued on the stream afterwards sees this gradient. The program
must order it before what the next step does with the gradient.
"""
wait_param_on(ctx::Context, parameter::Parameter, stream) =
    call(LibDDP.ddp_wait_param_on, ctx.handle, index_of(ctx, parameter), stream_of(stream))

# THE REST

"What the context has done, and how long it took: a named tuple of the fields of ddp_stats; times are in nanoseconds."
struct Stats
    values::LibDDP.ddp_stats
end
Base.propertynames(::Stats) = filter(name -> !(name in (:struct_size, :reserved0, :reserved1)), fieldnames(LibDDP.ddp_stats))
Base.getproperty(stats::Stats, name::Symbol) = getfield(getfield(stats, :values), name)
Base.show(io::IO, stats::Stats) =
    print(io, "Stats(", join(("$name=$(getproperty(stats, name))" for name in propertynames(stats)), ", "), ")")

"What the context has done, and how long it took."
function stats(ctx::Context)
    values = Ref{LibDDP.ddp_stats}()
    GC.@preserve values unsafe_store!(Ptr{Csize_t}(raw(values)), sizeof(LibDDP.ddp_stats))
    call(LibDDP.ddp_stats_get, ctx.handle, values)
    return Stats(values[])
end

"Averages the values of all floating-point and complex parameters over the group (nothing: the context's), in place."
function average_parameters!(ctx::Context, group::Union{Group,Nothing}=nothing)
    require_values(ctx, "average_parameters!")
    group === nothing && return call(LibDDP.ddp_average_parameters, ctx.handle, Ptr{ddp_group}(C_NULL))
    return using_group(pointer -> call(LibDDP.ddp_average_parameters, ctx.handle, pointer), group)
end

"Gives f the pointer of a group, which stays valid meanwhile."
function using_group(f, group::Group)
    pointer = enter(group.handle)
    try
        return f(Ptr{ddp_group}(pointer))
    finally
        leave(group.handle)
    end
end

"Continues in another group, between steps or after a failure."
function set_group!(ctx::Context, group::Group)
    using_group(pointer -> call(LibDDP.ddp_context_set_group, ctx.handle, pointer), group)
    end_step(ctx.handle, false)
    return nothing
end

"Breaks the context and its group on every rank."
abort!(ctx::Context, reason=nothing) = call(LibDDP.ddp_context_abort, ctx.handle, optional(reason))
