# A job whose ranks come and go (ddp/elastic.h).

"""
    Elastic(; init_method, backend, backend_options, timeout, name, store, secret, deterministic, match_check, insecure,
            min_world=0, max_world=0, settle=nothing)
    Elastic(f; ...)                closes it after f(job)

A job that goes on without ranks that die, and takes in those that come. `min_world`, `max_world` and `settle` (in
seconds) are those of ddp_elastic_options. If `min_world` or `max_world` is 0, ddprun says it. The others are those of `Group`. The store
must outlive all ranks. Creating it joins nothing yet: that is the first `begin_step!`. `job.group` is the group of this roster, at first
this rank alone.

    ctx = Context(job.group)                       # register!, commit!
    add_context!(job, ctx)
    add_state!(job, "momentum", momentum)
    while (now = begin_step!(job)).step < steps
        try
            ...                                    # grad_ready
            finalize!(ctx)
        catch error
            error isa DDPError || rethrow()
            continue                               # a rank was lost: begin_step! decides
        end
        ...                                        # the optimizer
        commit!(job)
    end
"""
struct Elastic
    handle::Handle
    contexts::Vector{Context}
    averagers::Vector{Averager}
end

function Elastic(; init_method=nothing, backend=nothing, backend_options=nothing, timeout=nothing, name=nothing,
                 store::Union{Store,Nothing}=nothing, secret=nothing, deterministic::Bool=false, match_check::Bool=true,
                 insecure::Bool=false, min_world::Integer=0, max_world::Integer=0, settle=nothing)
    sweep()
    made = Ref{Ptr{ddp_elastic}}()
    texts = map(optional, (init_method, backend, backend_options, name, secret))
    return with_group_options(texts, store, timeout, group_flags(deterministic, match_check, insecure)) do group
        held_group = Ref(group)
        GC.@preserve held_group begin
            settings = options(LibDDP.ddp_elastic_options_init_sized, LibDDP.ddp_elastic_options,
                               (group=raw(held_group), min_world=Int32(min_world), max_world=Int32(max_world),
                                settle_ms=milliseconds(settle)))
            call(LibDDP.ddp_elastic_create, Ref(settings), made;
                 keep=() -> Elastic(Handle(ELASTIC, made[]; kept=Any[store]), Context[], Averager[]))
        end
    end
end
Elastic(f::Function; keywords...) = closing(f, Elastic(; keywords...))

"A committed context of `job.group`, which then moves from roster to roster. It must stay open."
function add_context!(job::Elastic, ctx::Context)
    require_values(ctx, "add_context!")
    with_open((ctx.handle,)) do
        call(LibDDP.ddp_elastic_add_context, job.handle, ctx.handle.pointer)
    end
    push!(job.contexts, ctx)
    return nothing
end

"""
An averager with an outer optimizer, of a context that was added: ranks train apart, and come and go after outer steps. It must stay
open.
"""
function add_averager!(job::Elastic, averager::Averager)
    with_open((averager.handle,)) do
        call(LibDDP.ddp_elastic_add_averager, job.handle, averager.handle.pointer)
    end
    push!(job.averagers, averager)
    return nothing
end

"An array that belongs to the state, an optimizer's for example: of numbers of any type, contiguous."
function add_state!(job::Elastic, name::AbstractString, state)
    memory = state_memory(state)
    call(LibDDP.ddp_elastic_add_state, job.handle, String(name), memory.pointer,
         Csize_t(length(memory) * LibDDP.ddp_dtype_size(memory.dtype)))
    push!(job.handle.kept, held(state))
    return nothing
end

function state_memory(state)
    known = !(state isa AbstractArray) || !isbitstype(eltype(state)) || any(type === eltype(state) for (type, _) in TYPES[1:8])
    return memory_of("state", known ? state : reinterpret(UInt8, vec(state)))
end

"This rank has loaded the state after so many steps, from a checkpoint. Before the first `begin_step!`."
set_step!(job::Elastic, step::Integer) = call(LibDDP.ddp_elastic_set_step, job.handle, Int64(step))

"""
    begin_step!(job)

Begins a step; waits for the next roster if ranks were lost, come or go. A named tuple of step (how many are done), roster, rank,
world_size, changed (views may have moved), joined, left, leaving, and fence, which is greater than that of every roster before.
"""
function begin_step!(job::Elastic)
    told = Ref{LibDDP.ddp_elastic_step}()
    GC.@preserve told begin
        unsafe_store!(Ptr{Csize_t}(raw(told)), sizeof(LibDDP.ddp_elastic_step))
        with_parts(() -> call(LibDDP.ddp_elastic_begin, job.handle, told), job)
    end
    now = told[]
    now.changed == 1 && foreach(ctx -> end_step(ctx.handle, false), job.contexts)
    return (step=Int(now.step), roster=Int(now.roster), rank=Int(now.rank), world_size=Int(now.world_size),
            changed=now.changed == 1, joined=Int(now.joined), left=Int(now.left), leaving=now.leaving == 1,
            fence=Int(now.fence))
end

"This rank has applied the step: once after each `begin_step!`, when every optimizer has run."
commit!(job::Elastic) = with_parts(() -> call(LibDDP.ddp_elastic_commit, job.handle), job)

"""
    confirm_member(job)

Asks the store whether this rank is a member of the newest roster, and throws if it is not: between writing a checkpoint and renaming it.
Put `fence` into the file's name, too.
"""
confirm_member(job::Elastic) = with_parts(() -> call(LibDDP.ddp_elastic_confirm_member, job.handle), job)

const KEPT_WHERE = (neighbour=LibDDP.DDP_KEEP_AT_NEIGHBOUR, checkpoint=LibDDP.DDP_KEEP_IN_CHECKPOINT)

"""
    keep_shards(job, ctx, arrays, step; where=:neighbour)

On all ranks, for a context with `shard=true`: keeps the values and the `ShardArray`s, the state after `step` steps, to which a change of the
roster takes the job back. After `commit!`, or after `begin_step!` where `recall_shards!` has found nothing. `where`: `:neighbour` keeps
copies in memory, here and on another rank; `:checkpoint` says that the program has saved it (`save_shards`).
"""
function keep_shards(job::Elastic, ctx::Context, arrays, step::Integer; where::Symbol=:neighbour)
    haskey(KEPT_WHERE, where) || throw(ArgumentError("where: there is no $where; there are :neighbour and :checkpoint"))
    kept = name_arrays(ctx, arrays)
    GC.@preserve kept with_parts(job) do
        call(LibDDP.ddp_elastic_keep_shards, job.handle, ctx.handle.pointer, Int64(step), Int32(KEPT_WHERE[where]))
    end
    return nothing
end

"""
    recall_shards!(job, ctx, arrays) -> Bool

On all ranks, where `begin_step!` says `changed`: fills the `ShardArray`s of the new pieces, and all values, from what ranks have kept.
`false`: nothing was kept in memory, and nothing has changed here.
"""
function recall_shards!(job::Elastic, ctx::Context, arrays)
    kept, found = name_arrays(ctx, arrays), Ref{Int32}(0)
    GC.@preserve kept with_parts(job) do
        call(LibDDP.ddp_elastic_recall_shards, job.handle, ctx.handle.pointer, found)
    end
    return found[] != 0
end

"This rank will leave. Go on with steps until `begin_step!` says `leaving`."
announce_leave!(job::Elastic) = call(LibDDP.ddp_elastic_announce_leave, job.handle)

"Leaves between two steps. Afterwards the job can only be closed."
leave!(job::Elastic) = with_parts(() -> call(LibDDP.ddp_elastic_leave, job.handle), job)

"""
    shard_range(count, rank, world_size)

The share of a rank, which counts from 0, of the samples `1:count`. Shares lie in the order of ranks, differ by at most one sample, and
together are all samples.
"""
function shard_range(count::Integer, rank::Integer, world_size::Integer)
    first, last = Ref{Int64}(0), Ref{Int64}(0)
    call(LibDDP.ddp_shard_range, Int64(count), Int32(rank), Int32(world_size), first, last)
    return Int(first[]) + 1:Int(last[])
end

"f(), and no context and no averager of the job is freed meanwhile."
with_parts(f, job::Elastic) = with_open(f, Handle[part.handle for part in Iterators.flatten((job.contexts, job.averagers))])

"f(), and none of the handles is freed meanwhile."
function with_open(f, handles)
    entered = Handle[]
    try
        for handle in handles
            enter(handle)
            push!(entered, handle)
        end
        return f()
    finally
        foreach(leave, entered)
    end
end

Base.close(job::Elastic) = close(job.handle)
Base.isopen(job::Elastic) = isopen(job.handle)
Base.propertynames(::Elastic) = (:group,)
function Base.getproperty(job::Elastic, name::Symbol)
    name === :group || return getfield(job, name)
    handle = getfield(job, :handle)
    return Group(Handle(handle, ask(LibDDP.ddp_elastic_group, handle)))
end
