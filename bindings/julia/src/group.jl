# Groups of ranks that communicate, and what a launcher told this process (ddp/group.h).

"""
    environment()

The facts that a launcher told this process: a named tuple of rank, world_size, local_rank, local_world_size, restart and launcher; `nothing`
without a launcher.
"""
function environment()
    told = Ref{LibDDP.ddp_environment}()
    GC.@preserve told begin
        unsafe_store!(Ptr{Csize_t}(raw(told)), sizeof(LibDDP.ddp_environment))
        try
            call(LibDDP.ddp_environment_get, told)
        catch error
            error isa DDPError && error.status == LibDDP.DDP_ERROR_NOT_FOUND || rethrow()
            return nothing
        end
    end
    launcher = String(UInt8[each for each in told[].launcher if each != 0])
    return (rank=Int(told[].rank), world_size=Int(told[].world_size), local_rank=Int(told[].local_rank),
            local_world_size=Int(told[].local_world_size), restart=Int(told[].restart), launcher=launcher)
end

"Whether a group can be created with this backend."
function backend_available(name::AbstractString)
    error = Ref{Ptr{ddp_error}}(C_NULL)
    found = LibDDP.ddp_backend_available(String(name), error)
    LibDDP.ddp_error_free(error[])
    return found == 1
end

"""
    Group(; rank, world_size, init_method, backend, backend_options, timeout, name, store, secret, deterministic, match_check,
          round_robin, insecure)
    Group(f; ...)                  closes it after f(group)

A set of ranks. Creating one waits until every rank has joined. Without arguments everything comes from the launcher's
environment; without a launcher it is a group of one. `rank`, `world_size`, `init_method` ("env://", "tcp://host:port",
"file:///path", "etcd://host:port/name") replace the environment. `timeout` is in seconds: the bound of joining and of each
collective. The other arguments are those of ddp_group_options. `group.rank` (from 0), `group.world_size`, `group.backend` and `group.store`
describe it.
"""
struct Group
    handle::Handle
end

optional(given) = given === nothing ? nothing : String(given)

function Group(; rank::Union{Integer,Nothing}=nothing, world_size::Union{Integer,Nothing}=nothing, init_method=nothing,
               backend=nothing, backend_options=nothing, timeout=nothing, name=nothing,
               store::Union{Store,Nothing}=nothing, secret=nothing, deterministic::Bool=false, match_check::Bool=true,
               round_robin::Integer=1, insecure::Bool=false)
    sweep()
    made = Ref{Ptr{ddp_group}}()
    texts = map(optional, (init_method, backend, backend_options, name, secret))
    flags = LibDDP.DDP_GROUP_OR_ALONE | group_flags(deterministic, match_check, insecure)
    return with_group_options(texts, store, timeout, flags; rank=Int32(something(rank, -1)),
                              world_size=Int32(something(world_size, -1)), round_robin=UInt32(round_robin)) do settings
        call(LibDDP.ddp_group_create, Ref(settings), made; keep=() -> new_group(made[], store))
    end
end

group_flags(deterministic, match_check, insecure) = deterministic * LibDDP.DDP_GROUP_DETERMINISTIC |
                                                    !match_check * LibDDP.DDP_GROUP_NO_MATCH_CHECK |
                                                    insecure * LibDDP.DDP_GROUP_INSECURE

"f(options of a group), of texts and a store that stay meanwhile. texts: init_method, backend, backend_options, name, secret."
function with_group_options(f, texts, store, timeout, flags; others...)
    store_pointer = store === nothing ? C_NULL : enter(store.handle)
    try
        GC.@preserve texts begin
            return f(options(LibDDP.ddp_group_options_init_sized, LibDDP.ddp_group_options,
                             (init_method=text("init_method", texts[1]), backend=text("backend", texts[2]),
                              backend_options=text("backend_options", texts[3]), group_name=text("name", texts[4]),
                              secret=text("secret", texts[5]), timeout_ms=milliseconds(timeout), store=store_pointer,
                              flags=flags, others...)))
        end
    finally
        store === nothing || leave(store.handle)
    end
end
Group(f::Function; keywords...) = closing(f, Group(; keywords...))

function new_group(pointer::Ptr{ddp_group}, kept...)
    return Group(Handle(GROUP, pointer; kept=Any[kept...]))
end

Base.close(group::Group) = close(group.handle)
Base.isopen(group::Group) = isopen(group.handle)
Base.propertynames(::Group) = (:rank, :world_size, :backend, :store)
function Base.getproperty(group::Group, name::Symbol)
    handle = getfield(group, :handle)
    name === :handle && return handle
    name === :rank && return Int(ask(LibDDP.ddp_group_rank, handle))
    name === :world_size && return Int(ask(LibDDP.ddp_group_world_size, handle))
    name === :backend && return ask(pointer -> unsafe_string(LibDDP.ddp_group_backend(pointer)), handle)
    name === :store && return made_from(store -> Store(Handle(STORE, store)), LibDDP.ddp_group_store, Ptr{ddp_store}, handle)
    return getfield(group, name)
end
Base.show(io::IO, group::Group) =
    print(io, isopen(group) ? "Group(rank $(group.rank) of $(group.world_size), $(group.backend))" : "Group(closed)")

"""
    round_robin(groups) -> Group

Makes one group of several groups of the same ranks, and takes turns among them (ddp_group_round_robin).
"""
function round_robin(groups::AbstractVector{Group})
    made = Ref{Ptr{ddp_group}}()
    entered = Handle[]
    try
        for group in groups
            enter(group.handle)
            push!(entered, group.handle)
        end
        pointers = Ptr{ddp_group}[handle.pointer for handle in entered]
        return call(LibDDP.ddp_group_round_robin, pointers, Csize_t(length(pointers)), made; keep=() -> new_group(made[]))
    finally
        foreach(leave, entered)
    end
end

"""
    split(group, color; key=0)

Ranks that give the same color form a group, ordered by key, then by rank. -1 joins none: `nothing`.
"""
function Base.split(group::Group, color::Integer; key::Integer=0)
    return made_from(made -> made == C_NULL ? nothing : new_group(made), LibDDP.ddp_group_split, Ptr{ddp_group}, group.handle,
                     Int32(color), Int32(key))
end

"Throws the error that broke the group, if it is broken."
check(group::Group) = call(LibDDP.ddp_group_status, group.handle)

"Breaks the group on every rank."
abort!(group::Group, reason=nothing) = call(LibDDP.ddp_group_abort, group.handle, optional(reason))

"""
    alloc(group, type, dims...)

An array of zeros in which this group's collectives are fastest. `type`: a Julia type or DDP.BF16.
"""
function alloc(group::Group, type, dims::Integer...)
    code, extents = dtype_of("type", type), Dims(dims)
    bytes = Csize_t(prod(extents) * LibDDP.ddp_dtype_size(code))
    return made_from(LibDDP.ddp_mem_alloc, Ptr{Cvoid}, group.handle, bytes) do address
        array_over(address, code, extents, Handle(MEMORY, address))
    end
end

# COLLECTIVES. Each array is used where it lies. With async=true they return a Work at once; until it has ended the arrays must
# not be touched. Otherwise they return when all is done. dtype=DDP.BF16 reads arrays of UInt16 as bf16.

function matching(what, given, to::Memory, count::Int, dtype)
    given === nothing && return Memory(C_NULL, (0,), to.dtype, nothing, to.device)
    memory = memory_of(what, given, dtype; on_gpu=true)
    memory.dtype == to.dtype || throw(ArgumentError("$what: its elements are $(type_name(memory.dtype)), those of recv " *
                                                    type_name(to.dtype)))
    length(memory) == count || throw(ArgumentError("$what: it has $(length(memory)) elements, but $count are expected"))
    return memory
end

function part_of(to::Memory, group::Group)
    part, rest = divrem(length(to), group.world_size)
    rest == 0 || throw(ArgumentError("recv: $(length(to)) elements cannot be divided among $(group.world_size) ranks"))
    return part
end

"Calls f(group, args..., work): waits for the end, or returns the work, which keeps the arrays alive."
function start(f::F, group::Group, async::Bool, arrays, args...) where {F}
    sweep()
    made = Ref{Ptr{ddp_work}}()
    GC.@preserve arrays begin
        async && return call(f, group.handle, args..., made; keep=() -> new_work(made[], Any[arrays]))
        return call(f, group.handle, args..., Ptr{Ptr{ddp_work}}(C_NULL))
    end
end

"""
    allreduce!(group, recv, op=:sum; send=nothing, dtype=nothing, async=false)

recv = op over the ranks of `send`, or of `recv` itself. `op`: :sum, :avg, :prod, :min, :max, or +, *, min, max.
"""
function allreduce!(group::Group, recv, op=:sum; send=nothing, dtype=nothing, async::Bool=false)
    to = memory_of("recv", recv, dtype; on_gpu=true)
    from = matching("send", send, to, length(to), dtype)
    return start(LibDDP.ddp_allreduce, group, async, (to, from), from.pointer, to.pointer, Csize_t(length(to)), to.dtype,
                 op_of(op))
end

"buffer of rank `root` to every rank."
function bcast!(group::Group, buffer; root::Integer=0, dtype=nothing, async::Bool=false)
    to = memory_of("buffer", buffer, dtype; on_gpu=true)
    return start(LibDDP.ddp_broadcast, group, async, to, to.pointer, Csize_t(length(to)), to.dtype, Int32(root))
end

"recv = the ranks' send, one after another: its last dimension; without send, each rank's part is already in recv."
function allgather!(group::Group, recv, send=nothing; dtype=nothing, async::Bool=false)
    to = memory_of("recv", recv, dtype; on_gpu=true)
    part = part_of(to, group)
    from = matching("send", send, to, part, dtype)
    return start(LibDDP.ddp_allgather, group, async, (to, from), from.pointer, to.pointer, Csize_t(part), to.dtype)
end

"recv = this rank's part of op over the ranks of send."
function reduce_scatter!(group::Group, recv, send, op=:sum; dtype=nothing, async::Bool=false)
    to = memory_of("recv", recv, dtype; on_gpu=true)
    from = matching("send", send, to, length(to) * group.world_size, dtype)
    return start(LibDDP.ddp_reduce_scatter, group, async, (to, from), from.pointer, to.pointer, Csize_t(length(to)),
                 to.dtype, op_of(op))
end

"""
    all_to_all!(group, recv, send; recv_counts=nothing, send_counts=nothing, dtype=nothing, async=false)

recv = each rank's part of `send` for this rank. `send` holds a part for each rank and `recv` one from each, one after another:
equal parts, or of so many elements.
"""
function all_to_all!(group::Group, recv, send; recv_counts=nothing, send_counts=nothing, dtype=nothing, async::Bool=false)
    to = memory_of("recv", recv, dtype; on_gpu=true)
    (recv_counts === nothing) == (send_counts === nothing) ||
        throw(ArgumentError("recv_counts and send_counts: give both, or neither"))
    if recv_counts === nothing
        from, part = matching("send", send, to, length(to), dtype), part_of(to, group)
        return start(LibDDP.ddp_all_to_all, group, async, (to, from), from.pointer, to.pointer, Csize_t(part), to.dtype)
    end
    sent, received = UInt64[send_counts...], UInt64[recv_counts...]
    length(sent) == length(received) || throw(ArgumentError("recv_counts: there must be as many as send_counts"))
    sum(received) == length(to) || throw(ArgumentError("recv: it has $(length(to)) elements, but $(sum(received)) are expected"))
    from = matching("send", send, to, Int(sum(sent)), dtype)
    return GC.@preserve sent received start(LibDDP.ddp_all_to_allv, group, async, (to, from), from.pointer, to.pointer,
                                            pointer(sent), pointer(received), Csize_t(length(sent)), to.dtype)
end

"Done when every rank has called it."
barrier(group::Group; async::Bool=false) = start(LibDDP.ddp_barrier, group, async, ())
