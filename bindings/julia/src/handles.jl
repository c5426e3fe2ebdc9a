# Objects of libddp's: freed when they are closed or collected, but never while a call in any thread uses them, and never by
# a finalizer. A finalizer may run in the middle of anything, also inside a callback of libddp's, where most objects must
# not be freed; it only says what is garbage, and the next call that may free does.

# In the order in which they must be freed.
@enum Kind WORK AVERAGER OPTIMIZER CONTEXT LAYOUT MEMORY ELASTIC GROUP STORE BORROWED PART

const NAMES = Dict(WORK => "work", AVERAGER => "averager", OPTIMIZER => "optimizer", CONTEXT => "context", LAYOUT => "layout", MEMORY => "memory",
                   ELASTIC => "elastic job", GROUP => "group", STORE => "store",
                   BORROWED => "group or bucket that a callback was lent", PART => "elastic job")

mutable struct Handle
    kind::Kind
    pointer::Ptr{Cvoid}
    state::Threads.Atomic{Int}  # 2 for each call that uses it, and 1 when it is closed
    freed::Threads.Atomic{Int}
    raised::Vector{Any}         # exceptions of callbacks, on their way to the call that they come out of
    lent::Vector{Any}           # what callbacks were lent, void at the end of the step, and works that they passed on: end_step
    kept::Vector{Any}           # what C uses as long as this lives, such as arrays
    dependents::Vector{Handle}  # must be freed before this one

    function Handle(kind::Kind, pointer::Ptr; raised=Any[], kept=Any[])
        handle = new(kind, pointer, Threads.Atomic{Int}(0), Threads.Atomic{Int}(0), raised, Any[], kept, Handle[])
        if kind != BORROWED
            finalizer(discard, handle)
            kind in (CONTEXT, AVERAGER, ELASTIC, GROUP) && remember(handle)
        end
        return handle
    end
    # Part of another, which a call that uses the part uses too.
    Handle(whole::Handle, pointer::Ptr) = new(PART, pointer, whole.state, whole.freed, Any[], Any[], Any[whole], Handle[])
end

Base.isopen(handle::Handle) = iseven(handle.state[])

@noinline closed(handle::Handle) =
    throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE, "the $(NAMES[handle.kind]) is closed"))

"The pointer, which stays valid until `leave(handle)`."
@inline function enter(handle::Handle)
    if isodd(Threads.atomic_add!(handle.state, 2))
        leave(handle)
        closed(handle)
    end
    return handle.pointer
end

@inline function leave(handle::Handle)
    Threads.atomic_sub!(handle.state, 2) == 3 && free(handle)
    return nothing
end

"Frees it, at once or when the calls in other threads that use it have returned."
function Base.close(handle::Handle)
    handle.kind == PART && return nothing
    Threads.atomic_or!(handle.state, 1) == 0 && free(handle)
    return nothing
end

"Takes the pointer away, for C to own."
function give_away(handle::Handle)
    if Threads.atomic_cas!(handle.state, 0, 1) != 0
        isopen(handle) || closed(handle)
        throw(DDPError(LibDDP.DDP_ERROR_INVALID_STATE, "the $(NAMES[handle.kind]) is in use by another thread"))
    end
    handle.freed[] = 1
    return handle.pointer
end

function free(handle::Handle)
    handle.kind == BORROWED && return nothing
    handle.kind == PART && return free(handle.kept[1])
    if CALLBACKS_RUNNING[] != 0  # not from within one
        discard(handle)
        return nothing
    end
    foreach(close, handle.dependents)
    Threads.atomic_xchg!(handle.freed, 1) == 0 || return nothing
    forget(handle)
    Base.sigatomic_begin()
    free_pointer(handle.kind, handle.pointer)
    empty!(handle.kept)
    empty!(handle.lent)
    Base.sigatomic_end()
    return nothing
end

function free_pointer(kind::Kind, pointer::Ptr{Cvoid})
    kind == WORK ? LibDDP.ddp_work_free(pointer) :
    kind == AVERAGER ? gc_safe(LibDDP.ddp_averager_free, pointer) :
    kind == OPTIMIZER ? LibDDP.ddp_optimizer_free(pointer) :
    kind == CONTEXT ? gc_safe(LibDDP.ddp_context_free, pointer) :
    kind == ELASTIC ? gc_safe(LibDDP.ddp_elastic_free, pointer) :
    kind == LAYOUT ? LibDDP.ddp_layout_free(pointer) :
    kind == MEMORY ? LibDDP.ddp_mem_free(pointer, C_NULL) :
    kind == GROUP ? gc_safe(LibDDP.ddp_group_free, pointer) : gc_safe(LibDDP.ddp_store_free, pointer)
    return nothing
end

# GARBAGE

const CALLBACKS_RUNNING = Threads.Atomic{Int}(0)
const GARBAGE = Handle[]
const GARBAGE_LOCK = Threads.SpinLock()
const GARBAGE_COUNT = Threads.Atomic{Int}(0)

"The finalizer: also keeps what C may still use, the handle's arrays, until it is freed."
function discard(handle::Handle)
    handle.freed[] == 0 || return nothing
    if !trylock(GARBAGE_LOCK)  # perhaps held by the very thread that this finalizer interrupts
        finalizer(discard, handle)
        return nothing
    end
    push!(GARBAGE, handle)
    GARBAGE_COUNT[] += 1
    unlock(GARBAGE_LOCK)
    return nothing
end

# Handles that must not be freed before an array over their memory, even if they are closed. Not in the array's finalizer itself: an object that only
# a finalizer refers to is garbage to Julia's collector, as far as its own finalizer is concerned.
const OWNERS = Dict{Int,Handle}()
const OWNERS_LOCK = ReentrantLock()
const NEXT_OWNER = Threads.Atomic{Int}(0)
const RELEASED = Int[]

function keep_for(object, owner::Handle)
    number = Threads.atomic_add!(NEXT_OWNER, 1)
    enter(owner)
    lock(() -> OWNERS[number] = owner, OWNERS_LOCK)
    finalizer(released -> release(released, number), object)
    return nothing
end

function release(object, number::Int)
    if !trylock(GARBAGE_LOCK)
        finalizer(released -> release(released, number), object)
        return nothing
    end
    push!(RELEASED, number)
    GARBAGE_COUNT[] += 1
    unlock(GARBAGE_LOCK)
    return nothing
end

function take_garbage()
    taken, released = Handle[], Int[]
    lock(GARBAGE_LOCK)
    append!(taken, GARBAGE)
    append!(released, RELEASED)
    empty!(GARBAGE)
    empty!(RELEASED)
    GARBAGE_COUNT[] = 0
    unlock(GARBAGE_LOCK)
    foreach(leave, lock(() -> [pop!(OWNERS, number) for number in released], OWNERS_LOCK))
    return sort!(taken; by=handle -> Int(handle.kind))
end

"Frees what was collected. Operations that nobody holds any more keep their arrays until they have ended."
function sweep()
    CALLBACKS_RUNNING[] == 0 || return nothing
    drop_unused_callbacks()
    GARBAGE_COUNT[] == 0 || Base.disable_sigint(free_garbage)
    return nothing
end

"With signals deferred: a Ctrl-C would lose what has been taken, and inside `ddp_work_test` callbacks expect it (`guarded_body`)."
function free_garbage()
    for handle in take_garbage()
        if handle.kind == WORK && handle.freed[] == 0 && !ended(handle)
            discard(handle)
        else
            Threads.atomic_or!(handle.state, 1)
            free(handle)
        end
    end
    return nothing
end

function ended(work::Handle)
    done = Ref{Int32}(0)
    return LibDDP.ddp_work_test(work.pointer, done, C_NULL) != 0 || done[] != 0
end

# THE END OF THE PROCESS: ranks leave their groups, so that the others need not find out.

const OPEN = Dict{Ptr{Cvoid},WeakRef}()
const OPEN_LOCK = ReentrantLock()

remember(handle::Handle) = lock(() -> OPEN[handle.pointer] = WeakRef(handle), OPEN_LOCK)
forget(handle::Handle) = lock(() -> delete!(OPEN, handle.pointer), OPEN_LOCK)

function leave_groups()
    CALLBACKS_RUNNING[] == 0 || return nothing
    sweep()
    handles = Handle[each.value for each in lock(() -> collect(values(OPEN)), OPEN_LOCK) if each.value isa Handle]
    foreach(close, sort!(handles; by=handle -> Int(handle.kind)))
    return nothing
end
